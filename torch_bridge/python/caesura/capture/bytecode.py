# SPDX-License-Identifier: Apache-2.0
"""Checks bytecode: the code that Dynamo generates in place of a function, and the names that a function uses."""

import dis
import sys

from caesura.capture.compat import GRAPHS, MODULES

# Instructions that plain code may have beside the call of the graph: they look things up and make lists. All others
# must run in every call, for example those that set an attribute which the forward sets. Python 3.11 to 3.14.
_PLAIN = {"RESUME", "PUSH_NULL", "COPY", "SWAP", "PRECALL", "CALL", "KW_NAMES", "CALL_KW", "POP_TOP", "BINARY_SUBSCR",
          "UNPACK_SEQUENCE", "BUILD_LIST", "BUILD_TUPLE", "LIST_EXTEND", "BUILD_MAP", "BUILD_CONST_KEY_MAP", "LOAD_GLOBAL",
          "LOAD_CONST", "LOAD_SMALL_INT", "LOAD_ATTR", "LOAD_METHOD", "LOAD_DEREF", "COPY_FREE_VARS", "RETURN_VALUE",
          "RETURN_CONST", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_FAST_LOAD_FAST",
          "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "DELETE_FAST"}
_PREFIXES = {"CACHE", "EXTENDED_ARG", "NOP"}  # do nothing themselves
_MODULES = MODULES + "torch"  # prefix of PyTorch's modules in Dynamo's code
_METHODS = {"size", "stride", "storage_offset"}  # of tensors, which make the graph's symbols
# Functions of PyTorch's modules that only look things up (current streams, if there is another device). Other functions set
# attributes or make objects.
_FUNCTIONS = {"call_size", "call_stride",
              "call_storage_offset", "_as_tensor_fullprec", "store_user_object_weakrefs", "get_current_stream", "device",
              "dict_getitem", "list_getitem", "set_getitem", "dict_keys_getitem", "tuple_iterator_getitem"}


def _is_plain(i) -> bool:
    """True for an instruction that looks something up or makes a list."""
    if i.opname == "BINARY_OP":
        return i.argrepr == "[]"  # BINARY_SUBSCR since Python 3.14
    # Since Python 3.12 the lowest bit of LOAD_ATTR says that a method is looked up.
    is_method = i.opname == "LOAD_METHOD" or (i.opname == "LOAD_ATTR" and sys.version_info >= (3, 12) and i.arg & 1)
    return i.opname in _PLAIN and (not is_method or i.argval in _METHODS)


def graphs_called(code) -> set:
    """The names of the globals that hold the compiled graphs which the code calls."""
    return {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL" and i.argval.startswith(GRAPHS)}


def is_plain(code) -> bool:
    """True if the code only calls graphs."""
    graphs, of_module = graphs_called(code), False
    for i in dis.get_instructions(code):
        if i.opname in _PREFIXES:
            continue
        if not (i.argval in _FUNCTIONS if of_module else _is_plain(i)):
            return False
        is_global = i.opname == "LOAD_GLOBAL"
        of_module = is_global and i.argval.startswith(_MODULES)
        if is_global and not of_module and i.argval not in graphs:
            return False
    return True


def writes_globals(code) -> bool:
    """True if the code sets or deletes a global."""
    return any(i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for i in dis.get_instructions(code))


def globals_of(code) -> list:
    """The names that the code reads or writes as globals, in order."""
    named = {i.argval for i in dis.get_instructions(code) if i.opname.endswith(("_GLOBAL", "_NAME", "_GLOBALS"))}
    return [name for name in code.co_names if name in named]
