# SPDX-License-Identifier: Apache-2.0
"""The code that dynamo puts in a function's place."""

import dis

# What it may do beside the call of the graph: look things up and make lists. Anything else (an attribute that the forward has
# set) must happen in every call.
_PLAIN = {"RESUME", "PUSH_NULL", "COPY", "SWAP", "CACHE", "PRECALL", "CALL", "KW_NAMES", "POP_TOP", "BINARY_SUBSCR",
          "UNPACK_SEQUENCE", "BUILD_LIST", "BUILD_TUPLE", "LIST_EXTEND", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_CONST",
          "LOAD_ATTR", "LOAD_METHOD", "STORE_FAST", "DELETE_FAST", "RETURN_VALUE", "LOAD_DEREF", "COPY_FREE_VARS", "BUILD_MAP",
          "BUILD_CONST_KEY_MAP"}
_METHODS = {"size", "stride", "storage_offset"}  # of tensors, which make the graph's symbols


def graphs_called(code) -> set:
    """The globals that hold the compiled graphs that it calls."""
    return {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL" and i.argval.startswith("__compiled_fn")}


def is_plain(code) -> bool:
    """Whether it does nothing beside calling graphs."""
    graphs = graphs_called(code)
    return all(i.opname in _PLAIN
               and (i.opname != "LOAD_GLOBAL" or i.argval in graphs or i.argval.startswith("__import_torch"))
               and (i.opname != "LOAD_METHOD" or i.argval in _METHODS) for i in dis.get_instructions(code))
