# SPDX-License-Identifier: Apache-2.0
"""Checks bytecode: the code that Dynamo generates in place of a function, and the names that a function uses."""

import dis

from caesura.capture.compat import GRAPHS, MODULES

# Instructions that plain code may have beside the call of the graph: they look things up and make lists. All others
# must run in every call, for example those that set an attribute which the forward sets.
_PLAIN = {"RESUME", "PUSH_NULL", "COPY", "SWAP", "CACHE", "PRECALL", "CALL", "KW_NAMES", "POP_TOP", "BINARY_SUBSCR",
          "UNPACK_SEQUENCE", "BUILD_LIST", "BUILD_TUPLE", "LIST_EXTEND", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_CONST",
          "LOAD_ATTR", "LOAD_METHOD", "STORE_FAST", "DELETE_FAST", "RETURN_VALUE", "LOAD_DEREF", "COPY_FREE_VARS", "BUILD_MAP",
          "BUILD_CONST_KEY_MAP"}
_METHODS = {"size", "stride", "storage_offset"}  # of tensors, which make the graph's symbols
# Functions of PyTorch's modules that only look things up (current streams, if there is another device) or mark a place
# for a profiler. Other functions set attributes or make objects.
_FUNCTIONS = {"record_pregraph_bytecode_enter", "record_pregraph_bytecode_exit", "call_size", "call_stride",
              "call_storage_offset", "_as_tensor_fullprec", "store_user_object_weakrefs", "get_current_stream", "device",
              "dict_getitem", "list_getitem", "set_getitem", "dict_keys_getitem", "tuple_iterator_getitem"}


def graphs_called(code) -> set:
    """The names of the globals that hold the compiled graphs which the code calls."""
    return {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL" and i.argval.startswith(GRAPHS)}


def is_plain(code) -> bool:
    """True if the code only calls graphs."""
    graphs, before = graphs_called(code), None
    for i in dis.get_instructions(code):
        if i.opname not in _PLAIN or (i.opname == "LOAD_METHOD" and i.argval not in _METHODS):
            return False
        if i.opname == "LOAD_GLOBAL" and i.argval not in graphs and not i.argval.startswith(MODULES):
            return False
        if before is not None and before.opname == "LOAD_GLOBAL" and before.argval.startswith(MODULES) \
                and i.argval not in _FUNCTIONS:
            return False
        before = i if i.opname != "CACHE" else before
    return True


def globals_of(code) -> list:
    """The names that the code reads or writes as globals, in order."""
    named = {i.argval for i in dis.get_instructions(code) if i.opname.endswith(("_GLOBAL", "_NAME", "_GLOBALS"))}
    return [name for name in code.co_names if name in named]
