# SPDX-License-Identifier: Apache-2.0
"""Fingerprints: keys of all that a capture depends on, except the elements of tensors.

A fingerprint covers objects with all that they hold. Functions and methods count by name and line at first, because
most of them are not called. The capture shows which were traced; follow() then adds their code, their default
arguments, and the globals and closure values that they name. PyTorch and the standard library are identified by
release. Modules that read the environment (os, time, random, ...) have no key.
"""

import builtins
import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import hashlib
import logging
import operator
import sys
import types
import typing

import torch

from caesura import _core
from caesura.cache.known_code import is_known, is_plain_class, is_silent, is_special, releases
from caesura.capture.bytecode import globals_of
from caesura.capture.compat import (MARKS, SAVING, GlobalStateGuard, HigherOrderOperator, OpOverload, OpOverloadPacket,
                                    dispatch_modes, dynamo_config, function_modes, functorch_config, functorch_level,
                                    global_hooks, has_hooks, storage_id)
from caesura.capture.sources import leaves
from caesura.rewrites.gpu_attention import attend, attend_with_dropout

PLAIN = {type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range, slice, torch.dtype,
         torch.device, torch.layout, torch.memory_format, torch.Size, torch.torch_version.TorchVersion}
_BUILTINS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
             types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType)
# Attributes of classes that calls do not depend on.
_UNREAD = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__abstractmethods__", "_abc_impl",
           "__parameters__", "__orig_bases__", "__init__", "__new__", "__repr__", "__str__", "__reduce__", "__reduce_ex__",
           "__getstate__", "__setstate__", "__deepcopy__", "__copy__", "__del__"}
_RANDOM = {"_original_object_hash"}  # attributes of transformers that differ between processes
_LIMIT = 50000  # objects
_MADE_IN_PYTHON = 1 << 9  # a flag of classes whose objects may be given another class


class Unkeyed(Exception):
    """No key can hold this; the message says what."""


class Fingerprint:
    """A digest of added objects, and a watch that tells whether the digest would still be the same.

    Raises Unkeyed (in add() and key()) for an object with state that Python cannot see.
    """

    def __init__(self):
        self.watch = _core.Watch()
        self.functions = {}  # met so far, except PyTorch's and the standard library's: by (name, line), as in traced()
        self.tensors = set()  # their ids
        self._memory = {}  # storages of tensors, numbered
        self._hash = hashlib.sha256()
        self._numbers, self._held = {}, []
        _add_surroundings(self)

    def key(self) -> str:
        """The digest of everything added so far, in hexadecimal."""
        return self._hash.hexdigest()

    def follow(self, traced) -> bool:
        """Adds traced code (as traced() gives it) and all that it names; False if some of the code was not met."""
        self._say("traced")
        left = list(traced)
        while left:
            before, left = left, [code for code in left if not self._follow(code)]
            if len(left) == len(before):
                return False
        return True

    def add(self, value) -> None:
        kind = type(value)
        if kind in PLAIN:
            return self._say(kind.__name__, repr(value))
        if id(value) in self._numbers:
            return self._say("again", self._numbers[id(value)])
        if len(self._numbers) == _LIMIT:
            raise Unkeyed(f"more than {_LIMIT} objects")
        self._numbers[id(value)] = len(self._numbers)
        self._held.append(value)
        if kind.__flags__ & _MADE_IN_PYTHON:
            self.watch.class_of(value)
        for kinds, method in _KINDS:
            if issubclass(kind, kinds):  # an object may report another class
                return method(self, value)
        self._add_instance(value)

    def add_call(self, args, kwargs) -> _core.Signature:
        """Adds a call's arguments, which the watch does not look at: the signature tells another call's from them. Raises
        Unkeyed, too, for tensors that are not dense or were added before."""
        tensors = leaves(args, kwargs).values()
        if any(id(tensor) in self.tensors for tensor in tensors):
            raise Unkeyed("arguments that are the module's")
        if any(not tensor.is_contiguous() for tensor in tensors):
            raise Unkeyed("arguments that are not dense")
        watch, self.watch = self.watch, _core.Watch()
        self.add((args, kwargs))
        self.watch = watch
        try:
            return _core.Signature(args, kwargs)
        except TypeError as error:
            raise Unkeyed(str(error)) from None

    def reached(self, value) -> bool:
        """True if this object itself was added."""
        return id(value) in self._numbers

    def classes(self) -> list:
        """All that are in it."""
        return [value for value in self._held if isinstance(value, type)]

    def _say(self, *words) -> None:
        for word in words:
            text = str(word).encode()
            self._hash.update(b"%d:" % len(text) + text)

    # --- data ---

    def _add_sequence(self, value):
        if type(value) not in (tuple, list):
            if not (isinstance(value, tuple) and hasattr(type(value), "_fields")):
                raise Unkeyed(f"a {type(value).__name__}")
            self.add(type(value))
        self._say(type(value).__name__, len(value))
        if isinstance(value, list):
            self.watch.elements(value)
        for item in value:
            self.add(item)

    def _add_set(self, value):
        self._say(type(value).__name__, len(value))
        for item in sorted(value, key=_order):
            self.add(item)
        if isinstance(value, set):
            self.watch.returns(functools.partial(operator.eq, frozenset(value), value), True)

    def _add_dict(self, value):
        cls = type(value)
        self._say(cls.__name__)
        self._add_items(value)
        if issubclass(cls, collections.OrderedDict) and len(value) > 1:  # whose order is another one than the dict's below it
            keys = functools.partial(tuple, collections.OrderedDict.keys(value))
            self.watch.returns(keys, keys())
            self.add(keys())
        if cls not in (dict, collections.OrderedDict):
            if not is_plain_class(cls):
                raise Unkeyed(f"a {cls.__name__}")
            self.add(cls)
            self._add_items(vars(value))

    def _add_items(self, items: dict, unread=()):
        if unread:
            self.watch.length(items)
        else:
            self.watch.whole(items)
        for key, value in dict.items(items):
            if not unread:
                self.add(key)
                self.add(value)
            elif key not in unread:
                self.add(key)
                self.watch.item(items, key, value)
                self.add(value)
        self._say("end")

    def _add_tensor(self, value):
        if (type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided
                or value.device.type not in ("cpu", "cuda")):
            raise Unkeyed(f"a {type(value).__name__} on {value.device}")
        if has_hooks(value) or value.is_conj() or value.is_neg() or value.is_inference():
            raise Unkeyed("a tensor with hooks or lazy signs")
        self.tensors.add(id(value))
        self._say(type(value).__name__, value.dtype, value.device, tuple(value.shape), value.stride(), value.requires_grad, value.is_leaf)
        if value.untyped_storage().nbytes():
            self._say("memory", self._memory.setdefault(storage_id(value), len(self._memory)), value.storage_offset())
        self.watch.tensor(value, False)
        self.watch.length(vars(value))
        for name in sorted(vars(value)):
            if not name.startswith(MARKS):
                self._say(name)
                self.watch.item(vars(value), name, vars(value)[name])
                self.add(vars(value)[name])

    def _add_instance(self, value):
        cls = type(value)
        if cls is object:  # that is asked for by itself
            return self._say("object")
        if not is_plain_class(cls):
            raise Unkeyed(f"a {cls.__module__}.{cls.__qualname__}")
        self.add(cls)
        self._say("instance")
        self._add_items(vars(value), SAVING if isinstance(value, torch.nn.Module) else _RANDOM)

    def _add_enum(self, value):
        self.add(type(value))
        self._say("member", value.name, repr(value.value))

    def _add_slots(self, value):
        self._say(type(value).__name__)
        for name in _SLOTS[type(value)]:
            self.add(getattr(value, name))

    def _add_context_variable(self, value):
        now = functools.partial(_value_in_context, value)
        self._say("context variable", value.name)
        self.watch.returns(now, now())
        self.add(now())

    # --- code ---

    def _add_method(self, value):
        self.add((value.__func__, value.__self__))

    def _add_partial(self, value):
        self._say("partial")
        self.add(value.func)
        self.add(value.args)
        self.add(value.keywords)

    def _add_property(self, value):
        self._say("property")
        self.add(value.fget)

    def _add_wrapped(self, value):
        self._say(type(value).__name__)
        self.add(getattr(value, "func", None) or value.__func__)

    def _add_cached(self, value):
        """Adds a cached function. Dynamo traces the function that it wraps."""
        self._say("cached")
        self.add(value.__wrapped__)

    def _add_builtin(self, value):
        owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, (type, types.ModuleType)):
            self.add(owner)
            owner = type(owner)
        module = getattr(value, "__module__", None) or getattr(owner, "__module__", None)
        if not is_silent(module or "builtins"):
            raise Unkeyed(f"{module}.{value.__name__}")
        self._say("builtin", module, getattr(owner, "__name__", ""), value.__name__)

    def _add_operator(self, value):
        if not str(value).startswith(("aten.", "prims.")):
            raise Unkeyed(f"the operator {value}")
        self._say("operator", value)

    def _add_name(self, value):
        self._say("name", type(value).__name__, getattr(value, "name", None) or repr(value))

    def _add_function(self, value):
        """Adds a function by its name and line, with the functions in its closure."""
        code = value.__code__
        self._say("function", value.__module__, value.__qualname__, code.co_qualname, code.co_firstlineno)
        if not is_known(code.co_filename):
            self._meet(value, code)
        elif not is_silent(value.__module__ or "") and not hasattr(value, "__wrapped__"):
            raise Unkeyed(f"{value.__module__}.{value.__qualname__}")
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty one
                self._add_decoration(cell.cell_contents)

    def _add_decoration(self, held):
        """Adds what differs between decorated functions with the same code: functions and plain values, also those of
        the object that a method is bound to."""
        if isinstance(held, types.MethodType):
            self._say("of", type(held.__self__).__module__, type(held.__self__).__qualname__)
            for part in (held.__func__, *getattr(held.__self__, "__dict__", {}).values()):
                self._add_decoration(part)
        elif type(held) in PLAIN or isinstance(held, (types.FunctionType, functools.partial, functools._lru_cache_wrapper)):
            self.add(held)

    def _meet(self, function, code):
        self.functions.setdefault((code.co_qualname, code.co_firstlineno), []).append((function, code))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._meet(function, constant)

    def _follow(self, traced) -> bool:
        """Adds all functions of that name and line, and what they name."""
        for function, code in self.functions.get(tuple(traced), ()):
            self._say_code(code)
            if code is function.__code__:
                self.watch.function(function)
                self.add(function.__defaults__)
                self.add(function.__kwdefaults__)
                self._add_items(vars(function))
                self._add_cells(function)
            self._add_named(function.__globals__, code)
        return tuple(traced) in self.functions

    def _add_named(self, scope, code):
        """Adds the values of the names that code uses: globals, builtins, and attributes of modules."""
        names, own = code.co_names, globals_of(code)  # attributes may be named as globals are
        for name in (n for n in own if n not in scope and n in vars(builtins) and not is_special(n)):
            self.watch.lacks(scope, name)
            self.watch.item(vars(builtins), name, vars(builtins)[name])
            self.add(vars(builtins)[name])
        imported = [sys.modules[name] for name in names if "." in name and name in sys.modules]
        scopes = [(scope, False)] + [(vars(module), is_silent(module.__name__)) for module in imported]
        for number, (scope, silent) in enumerate(scopes):  # silent: a module's that is known but for what somebody has put there
            for name in names:
                if name not in scope or (number == 0 and name not in own):
                    continue
                value = scope[name]
                self.watch.item(scope, name, value)
                if silent and type(value) not in PLAIN:
                    self._add_patch(name, value)
                else:
                    self._say(name)
                    self.add(value)
                if isinstance(value, types.ModuleType) and not any(vars(value) is other for other, _ in scopes):
                    scopes.append((vars(value), is_silent(value.__name__)))

    def _add_cells(self, function):
        for cell in function.__closure__ or ():
            self.watch.cell(cell)
            try:
                self.add(cell.cell_contents)
            except ValueError:
                self._say("empty")

    def _say_code(self, code):
        self._say("code", code.co_code.hex(), code.co_flags, *code.co_names, "of", *code.co_varnames, *code.co_freevars)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._say_code(constant)
            else:
                self.add(constant)

    def _add_module(self, value):
        """Adds a module by its name. Its contents are added if code names them."""
        if type(value) is not types.ModuleType:
            make = getattr(type(value), "__getattr__", None)
            if isinstance(make, types.FunctionType) and "setattr" not in make.__code__.co_names:
                raise Unkeyed(f"module {value.__name__}, which makes its parts whenever they are asked for")
            self.add(type(value))  # it keeps the parts that it has made: what a capture reads is there
        if not is_silent(value.__name__) and (value.__name__ in sys.stdlib_module_names or "__getattr__" in vars(value)):
            raise Unkeyed(f"module {value.__name__}")
        self._say("module", value.__name__)

    def _add_class(self, value):
        if type(value) not in (type, enum.EnumMeta) and not is_silent(type(value).__module__):
            self.add(type(value))
        self.watch.class_(value)
        self._say("class", len(value.__mro__))
        for base in value.__mro__:
            self._say(base.__module__, base.__qualname__)
            own = is_known(getattr(sys.modules.get(base.__module__), "__file__", None) or "<built-in>")
            if own and not is_silent(base.__module__):
                raise Unkeyed(f"class {base.__module__}.{base.__qualname__}")
            for name, item in vars(base).items():
                if own:
                    self._add_patch(name, item)
                    if base is not torch.nn.Module and isinstance(item, types.FunctionType):
                        self._add_known_names(item)
                elif name not in _UNREAD:
                    self._say(name)
                    self.add(item)
                    if is_special(name) and isinstance(item, types.FunctionType):  # may be called without being named
                        self._say_code(item.__code__)
                elif isinstance(item, types.FunctionType):
                    self._meet(item, item.__code__)

    def _add_known_names(self, function):
        """Adds the types and names of a PyTorch function's globals, because any of them may have been replaced."""
        scope = function.__globals__
        for name in (name for name in function.__code__.co_names if name in scope):
            self._say(name, type(scope[name]).__name__, getattr(scope[name], "__name__", None))
            self.watch.item(scope, name, scope[name])

    def _add_patch(self, name, item):
        """Adds a callable found under one of PyTorch's names. For a replacement from outside of PyTorch the key holds
        its own code, but not the code that it calls, since most replacements are not called by any forward. `functions`
        does not list it, so that captures through it are not kept."""
        function = getattr(item, "__func__", item)
        if name in _UNREAD or not callable(function):  # dynamo, too, changes Module.__init__
            return
        self._say(name, getattr(function, "__module__", None), getattr(function, "__qualname__", None))
        if isinstance(function, types.FunctionType):
            if not is_known(function.__code__.co_filename):
                self._say_code(function.__code__)
        else:
            of = function if isinstance(function, type) else type(function)
            if of is functools.partial or not is_silent(of.__module__):
                self.add(function)


# Classes that describe a dataclass, with the attributes that are added to the key.
_SLOTS = {dataclasses._DataclassParams: ("init", "eq", "frozen"),
          dataclasses.Field: ("name", "default", "default_factory", "init", "kw_only")}
_KINDS = (
    (torch.Tensor, Fingerprint._add_tensor), (enum.Enum, Fingerprint._add_enum), ((tuple, list), Fingerprint._add_sequence),
    ((set, frozenset), Fingerprint._add_set), (dict, Fingerprint._add_dict), (types.FunctionType, Fingerprint._add_function),
    (types.MethodType, Fingerprint._add_method), (functools.partial, Fingerprint._add_partial),
    (type, Fingerprint._add_class), (property, Fingerprint._add_property),
    ((staticmethod, classmethod, functools.cached_property), Fingerprint._add_wrapped), (_BUILTINS, Fingerprint._add_builtin),
    (types.ModuleType, Fingerprint._add_module),
    ((OpOverload, OpOverloadPacket), Fingerprint._add_operator),
    (tuple(_SLOTS), Fingerprint._add_slots), (functools._lru_cache_wrapper, Fingerprint._add_cached),
    (contextvars.ContextVar, Fingerprint._add_context_variable),
    ((logging.Logger, types.GenericAlias, types.UnionType, typing._Final), Fingerprint._add_name),
)


def traced(code, own=()) -> list:
    """The names and lines of traced code, without PyTorch's, the standard library's and `own`."""
    return list(dict.fromkeys((c.co_qualname, c.co_firstlineno) for c in code if not is_known(c.co_filename) and c not in own))


def _order(item) -> str:
    """The sort key of a set's item, the same in each process."""
    if isinstance(item, (type, types.FunctionType)):
        return f"{item.__module__}.{item.__qualname__}"
    if isinstance(item, enum.Enum):
        return f"{type(item).__qualname__}.{item.name}"
    if isinstance(item, (tuple, frozenset)):
        return f"{type(item).__name__} {sorted(map(_order, item)) if isinstance(item, frozenset) else list(map(_order, item))}"
    if type(item) not in PLAIN:
        raise Unkeyed(f"a set with a {type(item).__name__}")
    return f"{type(item).__name__} {item!r}"


def calls_pytorch_alone(module: torch.fx.GraphModule) -> bool:
    """True if Dynamo's graph and the graphs in it call only PyTorch, or our attention in its place, since no key covers other
    code."""
    def known(target):
        if isinstance(target, (OpOverload, OpOverloadPacket)):
            return str(target).startswith(("aten.", "prims."))
        return isinstance(target, (HigherOrderOperator, *_BUILTINS)) or (
            isinstance(target, types.FunctionType) and (target in (attend, attend_with_dropout) or is_known(target.__code__.co_filename)))

    graphs = [m.graph for m in module.modules() if isinstance(m, torch.fx.GraphModule)]
    return all(known(node.target) for graph in graphs for node in graph.nodes if node.op == "call_function")


def _value_in_context(variable):
    try:
        return variable.get()
    except LookupError:
        return ...


def _add_surroundings(fingerprint: Fingerprint) -> None:
    """Adds the global state that PyTorch's own code reads."""
    if function_modes() or dispatch_modes() or functorch_level():
        raise Unkeyed("a mode or transform of PyTorch's that is on")
    if any(global_hooks()):
        raise Unkeyed("global hooks of modules")
    fingerprint.add(releases())
    fingerprint.add((
        torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"), torch.version.cuda, torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled, torch.is_anomaly_enabled(),
        torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(), _settings(dynamo_config), _settings(functorch_config)))
    fingerprint.watch.returns(GlobalStateGuard().check, True)
    fingerprint.watch.returns(function_modes, 0)
    fingerprint.watch.returns(torch.is_inference_mode_enabled, torch.is_inference_mode_enabled())
    fingerprint.watch.class_(torch.Tensor)
    for namespace in (torch, torch.Tensor, torch.nn.functional):
        for name, item in vars(namespace).items():
            fingerprint._add_patch(name, item)
            if namespace is not torch.Tensor and callable(item):
                fingerprint.watch.item(vars(namespace), name, item)
    for hooks in global_hooks():
        fingerprint.watch.length(hooks)


def _settings(config) -> tuple:
    """A module of PyTorch's settings that are plain, in order."""
    settings = config.get_config_copy()
    return tuple((name, repr(sorted(map(repr, value)) if isinstance(value, set) else value))
                 for name, value in sorted(settings.items()) if " at 0x" not in repr(value))
