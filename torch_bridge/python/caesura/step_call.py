# SPDX-License-Identifier: Apache-2.0
"""A compiled step's call without dynamo's bytecode: dynamo's guards, and what else must be as it was, checked in C++."""

import dis
import sys

import torch
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

from caesura import _core

# What dynamo's code may do beside the call of the graph: look things up and make lists. Anything else (an attribute that
# the forward has set) must happen in every call.
_PLAIN = {"RESUME", "PUSH_NULL", "COPY", "SWAP", "CACHE", "PRECALL", "CALL", "KW_NAMES", "POP_TOP", "BINARY_SUBSCR",
          "UNPACK_SEQUENCE", "BUILD_LIST", "BUILD_TUPLE", "LIST_EXTEND", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_CONST",
          "LOAD_ATTR", "LOAD_METHOD", "STORE_FAST", "DELETE_FAST", "RETURN_VALUE"}
_METHODS = {"size", "stride", "storage_offset"}  # of tensors, which make the graph's symbols


def make_call(owner, program, feeds, args, kwargs):
    """A _core.StepCall for calls like this one, which `program` has just run for with these feeds by name; None where
    dynamo must be asked."""
    groups = owner.optimizer.param_groups
    if any(type(group["lr"]) is not float for group in groups):
        return None
    guards = _guards(type(owner)._loss.__code__, program, {"self": owner, "args": args, "kwargs": kwargs})
    if guards is None:
        return None
    watched, tensors = _watch(owner.module)
    sources = []
    paths = {id(leaf): tuple(getattr(key, "key", getattr(key, "idx", None)) for key in path)
             for path, leaf in torch.utils._pytree.tree_leaves_with_path({"args": args, "kwargs": kwargs})}
    for name, value in feeds.items():
        found = paths.get(id(value), value if id(value) in tensors else None)
        if found is None or (isinstance(found, tuple) and None in found):
            return None
        sources.append((name, found))
    parameters = [value for _, _, value in program.bound]
    if any(id(value) not in tensors for value in parameters):
        return None
    watched.append((vars(owner.optimizer), "param_groups", groups))
    watched += [(group, key, value) for group in groups for key, value in group.items() if key not in ("lr", "params")]
    scales = [scale for _, scale, _ in owner.recipe.groups]
    return _core.StepCall(program.session, guards, watched, sources, parameters, groups, scales, owner.recipe.steps)


def _guards(code, program, frame):
    """The check of dynamo's guards on the code that calls `program` and does nothing else."""
    for entry in _debug_get_cache_entry_list(code):
        if entry.guard_manager.check(frame) and _calls_alone(entry.code, program):
            return entry.guard_manager.root.check
    return None


def _calls_alone(code, program) -> bool:
    instructions = list(dis.get_instructions(code))
    names = {i.argval for i in instructions if i.opname == "LOAD_GLOBAL" and i.argval.startswith("__compiled_fn")}
    scope = vars(sys.modules[__package__ + ".step"])
    called = [getattr(scope.get(name), "_torchdynamo_orig_callable", None) for name in names]
    if len(called) != 1 or called[0] is not program:
        return False
    return all(i.opname in _PLAIN
               and (i.opname != "LOAD_GLOBAL" or i.argval in names or i.argval.startswith("__import_torch"))
               and (i.opname != "LOAD_METHOD" or i.argval in _METHODS) for i in instructions)


def _watch(module):
    """((dict, key, value) by which the module and all in it hold their parts, id of each parameter and buffer)."""
    watched, tensors = [], set()
    for owner in module.modules():
        for kind in ("_modules", "_parameters", "_buffers"):
            held = vars(owner)[kind]
            watched.append((vars(owner), kind, held))
            watched += [(held, name, value) for name, value in held.items()]
            tensors.update(id(value) for value in held.values())
    return watched, tensors
