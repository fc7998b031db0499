# SPDX-License-Identifier: Apache-2.0
"""A compiled step's call without dynamo's bytecode: dynamo's guards, and what else must be as it was, checked in C++."""

import dis
import sys

from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

from caesura import _core
from caesura.places import leaves, named

# What dynamo's code may do beside the call of the graph: look things up and make lists. Anything else (an attribute that
# the forward has set) must happen in every call.
_PLAIN = {"RESUME", "PUSH_NULL", "COPY", "SWAP", "CACHE", "PRECALL", "CALL", "KW_NAMES", "POP_TOP", "BINARY_SUBSCR",
          "UNPACK_SEQUENCE", "BUILD_LIST", "BUILD_TUPLE", "LIST_EXTEND", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_CONST",
          "LOAD_ATTR", "LOAD_METHOD", "STORE_FAST", "DELETE_FAST", "RETURN_VALUE"}
_METHODS = {"size", "stride", "storage_offset"}  # of tensors, which make the graph's symbols


def make_call(owner, program, feeds, args, kwargs):
    """(what checks calls, where the feeds are) for calls like this one, which `program` has just run for with these feeds by
    name, for open_call(); None where dynamo must be asked."""
    guards = _guards(type(owner)._loss.__code__, program, {"self": owner, "args": args, "kwargs": kwargs})
    if guards is None:
        return None
    sources, paths, tensors = [], {id(leaf): path for path, leaf in leaves(args, kwargs).items()}, named(owner.module)
    for name, value in feeds.items():
        found = paths.get(id(value), value if id(value) in tensors else None)
        if found is None or (isinstance(found, tuple) and None in found):
            return None
        sources.append((name, found))
    return guards, sources


def open_call(owner, program, sources, guards, key=None):
    """A _core.StepCall, which checks calls by dynamo's guards or by a step_cache.Key; None where dynamo must be asked."""
    groups = owner.optimizer.param_groups
    if any(type(group["lr"]) is not float for group in groups):
        return None
    watch = _watch(owner.module) if key is None else key.watch
    tensors = named(owner.module)
    for _, _, value in program.bound:
        if id(value) not in tensors:
            return None
        watch.tensor(value, True)
    watch.item(vars(owner.optimizer), "param_groups", groups)
    for group in groups:
        for name, value in group.items():
            if name not in ("lr", "params"):
                watch.item(group, name, value)
    scales = [scale for _, scale, _ in owner.recipe.groups]
    return _core.StepCall(program, program.session, guards, key and key.signature, watch, sources, groups, scales,
                          owner.recipe.steps, program.draw_seed if program.random else None)


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
    """By what the module and all in it hold their parts."""
    watch = _core.Watch()
    for owner in module.modules():
        for kind in ("_modules", "_parameters", "_buffers"):
            held = vars(owner)[kind]
            watch.item(vars(owner), kind, held)
            for name, value in held.items():
                watch.item(held, name, value)
    return watch
