# SPDX-License-Identifier: Apache-2.0
"""Calls a compiled step without Dynamo's bytecode: C++ checks Dynamo's guards and all other conditions."""

import torch

from caesura import _core
from caesura.capture.bytecode import graphs_called, is_plain
from caesura.capture.compat import MODULE_PARTS, cache_entries, original, step_hooks
from caesura.capture.sources import leaves, named
from caesura.runtime.step_program import SEED


def find_sources(owner, feeds, args, kwargs):
    """Where `feeds`, the tensors by name that a call's program has run with, are: (name, path or tensor). None where one is
    neither among the arguments nor the module's."""
    sources, paths, tensors = [], {id(leaf): path for path, leaf in leaves(args, kwargs).items()}, named(owner.module)
    for name, value in feeds.items():
        found = paths.get(id(value), value if id(value) in tensors else None)
        if found is None or (isinstance(found, tuple) and None in found):
            return None
        sources.append((name, found))
    return sources


def find_guards(owner, program, args, kwargs):
    """Dynamo's check of calls like this one, which calls `program` and does nothing else; None where it does more."""
    function = type(owner)._loss
    for entry in cache_entries(function.__code__):
        if entry.guard_manager.check({"self": owner, "args": args, "kwargs": kwargs}) and _calls_alone(
                entry.code, program, function.__globals__):
            return entry.guard_manager.root.check
    return None


def open_call(owner, program, sources, guards, key=None, counters=()):
    """A _core.StepCall, which checks calls by dynamo's guards or by a compiled_steps.StepKey; None where dynamo must be asked.
    counters: (buffer of the module's, what each call adds to it)."""
    groups = owner.optimizer.param_groups
    if any(type(group["params"]) is not list for group in groups):
        return None
    if not all(draw.is_fixed for draw in program.draws):
        return None
    watch = _watch(owner.module) if key is None else key.watch
    tensors = named(owner.module)
    if any(counter.dtype != torch.int64 or counter.numel() != 1 or counter.device.type != "cpu" for counter, _ in counters):
        return None
    if any(id(value) not in tensors or value.is_complex() for _, _, value in program.bound):
        return None
    for counter, _ in counters:
        if id(counter) not in tensors:
            return None
        watch.tensor(counter, True)
    program.watch(watch)
    _watch_optimizer(watch, owner.optimizer, {key for key, _, _ in owner.recipe.places()})
    for parameter in program.learners:
        watch.unhooked(parameter)
    sources = [*sources, *((draw.name, draw) for draw in program.draws)]
    return _core.StepCall(program, program.session, guards, key and key.signature, watch, sources, list(groups),
                          owner.recipe.places(),
                          program.counts(), owner.recipe.counts_matter, program.learning, owner.accumulation_steps,
                          list(counters), [value for _, _, value in program.bound if id(value) not in program.learning],
                          SEED if program.random else None, program.gpu)


def _calls_alone(code, program, scope) -> bool:
    """scope: the globals of the code, in which dynamo puts its graphs."""
    called = [original(scope.get(name)) for name in graphs_called(code)]
    return len(called) == 1 and called[0] is program and is_plain(code)


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
