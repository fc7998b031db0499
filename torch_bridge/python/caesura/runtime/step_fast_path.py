# SPDX-License-Identifier: Apache-2.0
"""Calls a compiled step without Dynamo: C++ checks Dynamo's guards and all other conditions, and Dynamo's bytecode runs only where a
call leaves more than its loss."""

import types

import torch

from caesura import _core
from caesura.capture.bytecode import graphs_called, is_plain, writes_globals
from caesura.capture.compat import MODULE_PARTS, cache_entries, original, step_hooks
from caesura.capture.sources import leaves, named
from caesura.reports import Detour
from caesura.runtime.gpu import CPU
from caesura.runtime.optimizers import Recipe
from caesura.runtime.step_program import SEED

ZERO = torch.zeros((), dtype=torch.float32, device=CPU)  # that updates are fed
# Reasons, and what to do.
DOES_MORE = ("Dynamo's code for it does more than run the program: it sets an attribute, or makes an object",
             "Do such things outside of the forward. If it does none, report it with `caesura env`")
UNLIKE = ("no call is like one of the 8 latest kinds: an attribute or option changes each time, or many kinds take turns",
          "Keep attributes and options as they are between calls (TORCH_LOGS=recompiles tells which change)")


def find_sources(owner, ran, loss, args, kwargs):
    """Where the tensors are that a call's program has run with: (name, path or tensor). Raises Detour if calls like this one
    must go through Dynamo. ran: the program, the tensors by name, its counters, its loss; None if none ran."""
    program, feeds, _, returned = ran or (None, {}, (), None)
    if program is not None and program.needs_dynamo:  # to look again costs milliseconds
        raise Detour(*DOES_MORE)
    if not isinstance(owner._recipe, Recipe):
        raise Detour("PyTorch does the optimizer's update", "")  # which is told of
    if program is not None and program.is_parallel:
        raise Detour("it exchanges values with other ranks", "")
    if program is not None and program.arguments:
        raise Detour("it writes to an argument", "Let the forward write to a copy")
    if returned is not loss or loss.dtype != torch.float32:
        raise Detour(f"its loss, of {loss.dtype}, is not what the program returns", "Return the loss as a float32 tensor, as it is")
    sources, paths, tensors = [], {id(leaf): path for path, leaf in leaves(args, kwargs).items()}, named(owner.module)
    for name, value in feeds.items():
        found = paths.get(id(value), value if id(value) in tensors else None)
        if found is None or (isinstance(found, tuple) and None in found):
            raise Detour(f"its input {name} is neither an argument nor the module's tensor",
                         "Hand over tensors, in tuples, lists and dicts, or register them as buffers")
        sources.append((name, found))
    return sources


def find_code(owner, program, args, kwargs):
    """Dynamo's check of calls that run `program` and no other graph, its code for them, and whether this code only runs the program
    and the check lets calls like this one pass; (None, None, False) if there is no such code."""
    function = type(owner)._loss
    for entry in cache_entries(function.__code__):
        called = [original(function.__globals__.get(name)) for name in graphs_called(entry.code)]
        if len(called) == 1 and called[0] is program:
            check = entry.guard_manager.root.check
            return check, entry.code, is_plain(entry.code) and check({"self": owner, "args": args, "kwargs": kwargs})
    return None, None, False


class Leave:
    """Leaves what a call of a program leaves beside its loss: it runs Dynamo's code, for which the program has already run."""

    def __init__(self, owner, program, code):
        """Raises Detour where the code cannot run by itself."""
        if code is None or code.co_freevars or writes_globals(code):
            program.needs_dynamo = True
            raise Detour(*DOES_MORE)
        (graph,) = graphs_called(code)
        self._program, self._loss = program, None
        self._function = types.FunctionType(code, type(owner)._loss.__globals__ | {graph: self._results})

    def _results(self, *values):
        return self._program.results(self._loss, values)

    def begins(self, owner):
        """Called before the program runs."""
        if self._program.leaves_results:
            owner._refuse_to_begin()

    def __call__(self, owner, args, kwargs, loss):
        self._loss = loss
        return self._function(owner, *args, **kwargs)


def open_call(owner, program, sources, guards, key=None, counters=(), leave=None):
    """A _core.StepCall, which checks calls by dynamo's guards or by a compiled_steps.StepKey. Raises Detour where dynamo must
    be asked. counters: (buffer of the module's, what each call adds to it). leave: a Leave, where a call leaves more than its loss."""
    _refuse_groups(owner.optimizer)
    if not all(draw.is_fixed for draw in program.draws):
        raise Detour("it draws random tensors whose sizes change", "dynamic=False captures each size")
    watch = _watch(owner.module) if key is None else key.watch
    tensors = named(owner.module)
    if any(counter.dtype != torch.int64 or counter.numel() != 1 or counter.device.type != "cpu" for counter, _ in counters):
        raise Detour("it counts in a buffer that is no int64 number on the CPU", "Count in such a buffer")
    if any(id(value) not in tensors for value in (*(v for _, _, v in program.bound), *(counter for counter, _ in counters))):
        raise Detour("it uses tensors that are not the module's", "Register them as parameters or buffers")
    if any(value.is_complex() for _, _, value in program.bound):
        raise Detour("it has complex parameters or buffers", "")
    for counter, _ in counters:
        watch.tensor(counter, True)
    program.watch(watch)
    _watch_optimizer(watch, owner.optimizer, {key for key, _, _ in owner._recipe.places()})
    for parameter in program.learners.values():
        watch.unhooked(parameter)
    sources = [*sources, *((draw.name, draw) for draw in program.draws)]
    written = [value for _, _, value in program.bound if id(value) not in program.learning]
    return _make(owner, program, guards, key and key.signature, watch, sources, counters, written, leave)


def open_update(owner, program, gradients):
    """A _core.StepCall of an update, called with the gradients of all parameters, some of them None. Raises Detour where the
    optimizer must be looked at."""
    _refuse_groups(owner.optimizer)
    watch = _core.Watch()
    program.watch(watch)
    _watch_optimizer(watch, owner.optimizer, {key for key, _, _ in owner._recipe.places()})
    sources = [*((name, ("args", i)) for name, i in program.feeds), ("zero", ZERO)]
    return _make(owner, program, None, _core.Signature(gradients, {}), watch, sources, (), [])


def _refuse_groups(optimizer):
    if any(type(group["params"]) is not list for group in optimizer.param_groups):
        raise Detour("the parameters of an optimizer's group are no list", "Give each group's params as a list")


def _make(owner, program, guards, signature, watch, sources, counters, written, leave=None):
    recipe, groups = owner._recipe, owner.optimizer.param_groups
    rows = [(groups[i], [recipe.count(program.learners[name]) for name in names]) for i, names in program.rows]
    return _core.StepCall(program, program.session, guards, signature, watch, sources, rows, program.uses, recipe.places(),
                          recipe.counts_matter, program.has_offsets, program.learning, owner.accumulation_steps, list(counters), written,
                          SEED if program.random else None, program.gpu, leave)


def _watch_optimizer(watch, optimizer, fed):
    """Watches the groups, their parameters, the options that an update reads but is not fed, and hooks around the
    step."""
    watch.item(vars(optimizer), "param_groups", optimizer.param_groups)
    watch.elements(optimizer.param_groups)
    for group in optimizer.param_groups:
        watch.elements(group["params"])
        for name in group.keys() & (optimizer.defaults.keys() | {"params"}) - fed:
            watch.item(group, name, group[name])
    for hooks in step_hooks(optimizer):
        watch.length(hooks)


def _watch(module):
    """A watch of the dicts in which the module and all its submodules hold their parts."""
    watch = _core.Watch()
    for owner in module.modules():
        for kind in MODULE_PARTS:
            held = vars(owner)[kind]
            watch.item(vars(owner), kind, held)
            for name, value in held.items():
                watch.item(held, name, value)
    return watch
