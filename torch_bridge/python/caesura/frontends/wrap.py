# SPDX-License-Identifier: Apache-2.0
"""caesura.wrap: a PyTorch module that trains through caesura."""

import copy
import dis
import functools
import types
import weakref
from collections.abc import Iterator
from typing import Any, Optional, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from caesura.cache import disk, module_calls
from caesura.cache.fingerprint import Unkeyed
from caesura.capture.bytecode import is_plain
from caesura.capture.class_guards import Classes
from caesura.capture.compat import CALL, GRAPHS, MODULE_PARTS, cache_entries, original, stance
from caesura.capture.decompositions import decompositions
from caesura.capture.frames import tracing
from caesura.capture.polyfills import capturing
from caesura.capture.sources import mark_changing
from caesura.frontends.dynamo_backend import apart, backend as torch_backend
from caesura.lowering import TABLE
from caesura.ranks import has_process_group, is_sharded
from caesura.reports import RECORD, Detours, fall_back, note_detour, refusing, told_at_the_end
from caesura.runtime.autograd_call import is_operator
from caesura.user_code import calling_line

M = TypeVar("M", bound=torch.nn.Module)
_PLAIN = "caesura_plain_forward"  # of a captured forward: the one that it captures
_CALLED = {CALL, "plain_forward"}  # the captured functions, by their names in wrap() and _Forward
_KEYS = 32  # looked up, after which no more are: inputs or the module change too often
_CALLS = 8  # captures that a module can alternate between without asking Dynamo


def _past_dynamo(scope: dict[str, Any]) -> dict[str, Any]:
    """The globals of Dynamo's code, changed so that our operators are called directly, not in a scope without Dynamo."""
    scope = dict(scope)
    for name, value in scope.items():
        call = original(value) if name.startswith(GRAPHS) else None
        if is_operator(call):
            scope[name] = call
    return scope


class _Calls:
    """A compiled function's captures: dynamo's guards and code, without the callback that would capture more.

    If none of them fits, or if the code continues in frames that Dynamo must see (after a graph break), Dynamo is
    asked.
    """

    def __init__(self, function: Any, module: Any, dynamic: Any, kept: Any = True) -> None:
        """kept: whether to look for calls on disk."""
        self.function, self.module, self.dynamic = function, module, dynamic
        self.recalled = []  # calls from disk, that dynamo has not seen; the latest first
        self.keys = _KEYS if kept and dynamic is not True and disk.enabled() else 0
        self.detours = Detours(type(module).__name__)
        self.on_disk = f"calls of {type(module).__name__} are not kept on disk"
        self.wrapped: Any = None  # a weak reference to the wrapped module whose calls they are
        self.is_sharded = False
        self._begin()

    def _begin(self) -> None:
        """Forgets what was captured."""
        self.compiled = torch.compile(apart(self.function), backend=torch_backend, dynamic=self.dynamic,  # type: ignore[call-overload]
                                      recompile_limit=64)
        self.candidate: Any = None  # a call that may be kept
        self.classes: Any = None  # the classes that the captures were made for
        self.captures = []  # (guards, function), the latest first
        self.known = weakref.WeakSet()  # the code of all that were seen
        self.is_broken = False  # whether a graph break is in one of them

    def __call__(self, args: Any, kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return self.compiled(*args, **kwargs)
        if stance() != "default":
            with tracing():
                return self.compiled(*args, **kwargs)
        for call in self.recalled:
            if call.fits(args, kwargs):
                return call(args, kwargs)
        if self.classes is not None and not self.classes.unchanged():
            self.detours.add(("its class has changed, and what was captured is dropped", "Do not change classes between calls"))
            self._begin()
        frame = {"args": args, "kwargs": kwargs, "module": self.module}
        for guards, function in self.captures:
            if guards(frame):
                results = function(*args, **kwargs)
                if self.candidate is not None:
                    self._confirm(args, kwargs)
                return results
        return self._first(args, kwargs)

    def _first(self, args: Any, kwargs: Any) -> Any:
        if self._take_sharded():
            return getattr(self.module, CALL)(*args, **kwargs)
        self.detours.tell()
        failed = RECORD.eager_calls
        key = self._key(args, kwargs)
        if key is None:
            results = self._ask_dynamo(args, kwargs)
        else:
            for known in self.recalled:
                call = known.renewed(key, self.module, args, kwargs)
                if call is not None:
                    self.recalled.remove(known)
                    break
            else:
                call = module_calls.load(key, functools.partial(decompositions, TABLE), self.module, args, kwargs)
            if call is not None:
                self.recalled = [call, *self.recalled[:_CALLS - 1]]
                return call(args, kwargs)
            if self.dynamic is None and self.recalled and not self.captures:
                mark_changing(args, kwargs, self.recalled[0].shapes)
            with module_calls.recording() as records:
                results = self._ask_dynamo(args, kwargs)
        is_new, function = self._find()
        self.detours.add(self._why(), is_new or RECORD.eager_calls != failed)  # failed captures are told of and counted
        if self.classes is None or function is not None:
            self.classes = Classes(self.module)
        if key is not None:
            try:
                self.candidate = module_calls.Candidate(key, records, results, original(self.compiled).__code__)
                if function is not None and is_plain(function.__code__):
                    self.candidate.store(key)
                    self.candidate = None
            except KeyError as error:
                note_detour(self.on_disk, f"not {error.args[0]}")
                self.keys = 0  # later calls will be alike
        return results

    def _take_sharded(self) -> bool:
        """True if fully_shard() has parts of the wrapped module. Its hooks around their forwards gather parameters and free them
        again, which no graph holds: PyTorch calls the module then, and the forwards within are captured."""
        if self.wrapped is not None and not self.is_sharded and has_process_group():
            if any(map(is_sharded, (self.wrapped(), *self.module.modules()))):
                _capture_forwards(self.module, self.dynamic)
                self.is_sharded = True
        return self.is_sharded

    def _confirm(self, args: Any, kwargs: Any) -> None:
        """Keeps the candidate if a second call left everything as the first call did."""
        key = self._key(args, kwargs)
        if key is not None and self.candidate.is_left_by(key):
            self.candidate.store(key)
        self.candidate = None

    def _ask_dynamo(self, args: Any, kwargs: Any) -> Any:
        with refusing(), told_at_the_end(), capturing(self.module):
            return self.compiled(*args, **kwargs)

    def _key(self, args: Any, kwargs: Any) -> Any:
        """The call's module_calls.CallKey; None if it has none."""
        if self.keys == 0:
            return None
        self.keys -= 1
        if self.keys == 0:
            note_detour(self.on_disk, f"{_KEYS} of its calls had other keys")
        try:
            return module_calls.CallKey(self.module, self.dynamic, args, kwargs)
        except Unkeyed as error:
            self.keys = 0
            note_detour(self.on_disk, f"no key holds {error}")
            return None

    def _find(self) -> Any:
        """Looks for new captures: (whether there are any, the function of one or None)."""
        call, function, is_new = original(self.compiled), None, False
        for entry in cache_entries(call.__code__):
            if entry.code in self.known:
                continue
            self.known.add(entry.code)
            is_new, broken = True, any(i.argval in _CALLED for i in dis.get_instructions(entry.code))
            self.is_broken |= broken
            if not broken:
                function = types.FunctionType(entry.code, _past_dynamo(call.__globals__), call.__name__, None, call.__closure__)
                self.captures = [(entry.guard_manager.root.check, function), *self.captures[:_CALLS - 1]]
        return is_new, function

    def _why(self) -> tuple[str, str]:
        """Why a call like an earlier one asks Dynamo, and what to do."""
        if self.is_broken:
            return "a graph break", ""  # which is told of
        if not self.known:
            return "nothing in it is captured", ""  # it computes nothing
        if len(self.captures) == _CALLS:
            return (f"its calls are of more than {_CALLS} kinds in turn (dtypes, ranks, plain values, modes)",
                    "Wrap one module for each kind, or make sizes symbols: wrap(module, dynamic=True)")
        return (f"no capture fits the next call, in PyTorch {torch.__version__}", "Report it with the output of `caesura env`")


def _captured_forward(plain_forward: Any, module: Any, dynamic: Any) -> Any:
    """A module's forward as a function that runs what is captured of it. It takes the module first where the forward is a method."""
    is_method = isinstance(plain_forward, types.MethodType)
    calls = _Calls(lambda *args, **kwargs: plain_forward(*args, **kwargs), module, dynamic, kept=False)

    @functools.wraps(plain_forward.__func__ if is_method else plain_forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        return calls(args[is_method:], kwargs)

    setattr(run, _PLAIN, plain_forward)
    return run


def _whole_parts(module: Any) -> Iterator[Any]:
    """The largest parts of a module that have a forward and hold no part that fully_shard() has, but for themselves. Wrapped parts
    are left out."""
    if any(_calls_of(cls) is not None for cls in type(module).__mro__):
        return
    has_forward = type(module).forward is not torch.nn.Module.forward
    if has_forward and not any(is_sharded(part) for part in module.modules() if part is not module):
        yield module
        return
    for part in module.children():
        yield from _whole_parts(part)


def _capture_forwards(module: Any, dynamic: Any) -> None:
    """Replaces the forwards of the module's whole parts by what is captured of them."""
    parts = list(dict.fromkeys(_whole_parts(module)))
    if parts != [module]:
        fall_back([(f"the forward of {type(module).__name__}", "it calls parts that fully_shard() has; the forwards of these are captured",
                    "{}:{} in {}".format(*calling_line()))])
    for part in parts:
        plain_forward = getattr(part.forward, _PLAIN, part.forward)
        run = _captured_forward(plain_forward, part, dynamic)
        part.forward = types.MethodType(run, part) if isinstance(plain_forward, types.MethodType) else run


class _Forward(property):
    """A wrapped module's `forward`: the original's as it is at the time, captured. It calls no hooks, as in PyTorch."""

    def __init__(self, module: Any, dynamic: Any) -> None:
        super().__init__(self._captured, self._set, self._delete)
        self.module, self.dynamic = module, dynamic
        self.plain: Any = None
        self.run: Any = None

    def __get__(self, wrapped: Any, cls: Any = None) -> Any:
        return type(self.module).forward if wrapped is None else super().__get__(wrapped, cls)

    def _captured(self, wrapped: Any) -> Any:
        plain_forward = self.module.forward
        if torch.compiler.is_dynamo_compiling():
            return plain_forward
        if self.plain != plain_forward:
            self.plain, self.run = plain_forward, _captured_forward(plain_forward, self.module, self.dynamic)
        return types.MethodType(self.run, wrapped) if isinstance(plain_forward, types.MethodType) else self.run

    @staticmethod
    def _set(wrapped: Any, forward: Any) -> None:
        vars(wrapped)["forward"] = forward

    @staticmethod
    def _delete(wrapped: Any) -> None:
        del vars(wrapped)["forward"]


# A wrapped module's class has these attributes, and derives from the module's class only: so an instance is laid out in
# memory as the module is, in whatever order the bases are. The class itself holds the data of one wrapped module.

def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    return type(self)._calls(args, kwargs)


def _deepcopy(self: Any, memo: Any) -> Any:
    return wrap(copy.deepcopy(type(self)._calls.module, memo), dynamic=type(self)._calls.dynamic)


def _reduce(self: Any) -> Any:
    return functools.partial(wrap, dynamic=type(self)._calls.dynamic), (type(self)._calls.module,)


def _calls_of(cls: Any) -> Any:
    """The calls of a class of wrapped modules; None for others."""
    calls = vars(cls).get("_calls")
    return calls if isinstance(calls, _Calls) else None


def original_of(module: Any) -> Any:
    """The module that PyTorch runs: the original of a wrapped one, which shares everything with it."""
    calls = _calls_of(type(module))
    return module if calls is None else calls.module

def _with_module(parallel: Any, module: Any) -> Any:
    """A DistributedDataParallel that shares everything with `parallel` except the module that it calls."""
    if module is parallel.module:
        return parallel
    other = object.__new__(type(parallel))
    modules = MODULE_PARTS[0]
    other.__dict__ = vars(parallel) | {modules: vars(parallel)[modules] | {"module": module}}
    return other


def wrap(module: M, *, dynamic: Optional[bool] = None) -> M:
    """Makes a module whose forward and backward run in caesura; it is an instance of the module's own class.

    The wrapped module and the original share everything: parameters, buffers, attributes, hooks, training mode. A
    change to one is a change to the other, and state_dict() has the original's names. The original still runs in
    PyTorch. `forward` is captured too, without the hooks.

    The first call captures graphs. So does a call whose inputs have other dtypes, devices, ranks or non-tensor values
    than every graph before. Calls without a kernel stay with PyTorch, with a FallbackWarning, and so does code that
    Dynamo does not capture (a graph break): stats() counts them, strict() forbids them. On other devices than the
    CPU and NVIDIA's GPUs all calls stay.

    The backward hands out gradients as they are ready, 1 MiB at a time, so that DistributedDataParallel sends them while
    the rest is computed. DistributedDataParallel(wrap(module)) and wrap(DistributedDataParallel(module)) are the same.

    Of a module that fully_shard() has, or some of whose parts it has, the forwards of the parts are captured: in place, so that
    the result is the module itself. The code between sharded parts runs in PyTorch. Parts may be wrapped before fully_shard(), too.

    Thread safety: that of the module.

    Args:
        module: any torch.nn.Module. A wrapped one is returned as it is, or wrapped anew if `dynamic` asks for something else.
        dynamic: None: a size becomes a symbol once it has changed. True: all sizes are symbols from the start. False:
            none ever is, and each new size is captured.

    Returns:
        torch.nn.Module: the wrapped module.

    Raises:
        TypeError: `module` is no torch.nn.Module.
        StrictError: from a call within strict(), if a part of it would be left to PyTorch.

    Example::

        model = caesura.wrap(model)
        loss = model(input_ids, labels=labels).loss
        loss.backward()
        optimizer.step()
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"wrap() takes a torch.nn.Module, got {type(module).__name__}")
    calls = _calls_of(type(module))
    if calls is not None:
        if dynamic is None or dynamic == calls.dynamic:
            return module
        module = calls.module
    if isinstance(module, DistributedDataParallel):
        parallel: M = _with_module(module, wrap(module.module, dynamic=dynamic))
        return parallel

    if any(map(is_sharded, module.modules())):
        _capture_forwards(module, dynamic)
        return module

    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)  # as compat.CALL says: dynamo traces this

    calls = _Calls(call, module, dynamic)
    cls = type(type(module).__name__, (type(module),), {
        "_calls": calls, "forward": _Forward(module, dynamic), "__call__": _call,
        "__deepcopy__": _deepcopy, "__reduce__": _reduce, "__module__": type(module).__module__, "__doc__": type(module).__doc__,
    })
    wrapped: M = object.__new__(cls)
    wrapped.__dict__ = module.__dict__
    calls.wrapped = weakref.ref(wrapped)
    return wrapped
