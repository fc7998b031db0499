# SPDX-License-Identifier: Apache-2.0
"""Keeps calls of wrapped modules on disk, so that another process traces nothing.

A file says which graph's call it is (graph_calls.py), where that graph's inputs come from, and how the results are made
of its outputs.

A call's key (keys.py) holds: the module with all that it refers to, the code that was traced (as in compiled_steps.py), the
arguments (tensors by dtype, shape and whether they require a gradient, all else by value), `dynamic`, and what
fingerprint.py adds.

A call is kept if it was one graph of fixed shapes and did not change anything that its key is made of. Its results may
be tensors of that graph and plain values, in tuples, lists, dicts and objects of Python classes that the module's code
names. If Dynamo's code does more than call the graph, a second call must confirm that nothing changes.
"""

import collections
import contextlib

import torch

from caesura.cache import disk, fingerprint, graph_calls, keys
from caesura.cache.known_code import is_plain_class
from caesura.capture.compat import dispatch_modes, functorch_level, tree_flatten, tree_unflatten
from caesura.capture.sources import leaves, named, tensors_of
from caesura.rewrites.aliasing import share_memory
from caesura.runtime import autograd_call

_VALUES = {type(None), bool, int, float, str, torch.dtype, torch.device}  # that results may hold


class CallKey(keys.Key):
    """A call's key. Raises Unkeyed if the call has none."""

    def __init__(self, module, dynamic, args, kwargs):
        self.call = module, dynamic, args, kwargs
        super().__init__()

    def _fill(self, fingerprint):
        module, dynamic, args, kwargs = self.call
        fingerprint.add(module)
        signature = fingerprint.add_call(args, kwargs)
        fingerprint.add(("wrap", dynamic))
        for mode in (dispatch_modes, functorch_level):
            fingerprint.watch.returns(mode, mode())
        return signature

    def reached(self, value) -> bool:
        """True if the key was made from this object itself."""
        return self._fingerprint.reached(value)

    def classes(self) -> dict:
        """The classes in the key by module and name; None for a name that two of them share."""
        found = {}
        for cls in self._fingerprint.classes():
            name = cls.__module__, cls.__qualname__
            found[name] = None if name in found else cls
        return found


@contextlib.contextmanager
def recording():
    """A list of the graph calls that run within the block: (function, arguments, outputs)."""
    records = []
    autograd_call.watching.append(records)
    try:
        yield records
    finally:
        autograd_call.watching[:] = [other for other in autograd_call.watching if other is not records]


class Candidate:
    """A call that was just made, in the form to keep. Raises KeyError if it cannot be kept. before: its key then.
    wrapper: the code that calls the module."""

    def __init__(self, before: CallKey, records, results, wrapper):
        if len(records) != 1 or records[0][0].key is None:
            raise KeyError("one graph that is kept")
        ((function, arguments, outputs),) = records
        module, _, args, kwargs = before.call
        try:
            key = CallKey(*before.call)  # the watch would not tell: dynamo changes Module at its first graph
        except fingerprint.Unkeyed:
            raise KeyError("key") from None
        self._traced = fingerprint.traced(function.code, {wrapper})
        self._program = key.follow(self._traced)
        if key.text != before.text or not self._program:
            raise KeyError("the same key")
        places = {id(leaf): path for path, leaf in leaves(args, kwargs).items()}
        if any(id(arguments[i]) in places for i in function.written):
            raise KeyError("arguments that are left alone")
        places |= named(module)
        numbers = {id(tensor): i for i, tensor in enumerate(outputs)}
        self._facts = {"call": function.key, "places": [places[id(tensor)] for tensor in arguments],
                       "results": _describe(results, numbers, key)}
        if _numbers_in(self._facts["results"]) != set(range(len(outputs))):
            raise KeyError("outputs")

    def is_left_by(self, key: CallKey) -> bool:
        """True if another call left everything as this call did. key: the other call's key, made after that call."""
        return key.follow(self._traced) == self._program

    def store(self, key: CallKey) -> None:
        """Keeps the call on disk. key: the key of an equal call."""
        disk.store(self._program, {"module": graph_calls.packed(self._facts, bytearray())}, b"")
        key.note(self._traced)


def load(key: CallKey, decompositions, module, args, kwargs):
    """The Recalled of that key; None if there is none."""
    for traced, program in key.programs():
        content = disk.load(program)
        if content is None:
            continue
        try:
            facts = graph_calls.unpacked(content[0]["module"], content[1])
            function = graph_calls.load(facts["call"], _Eager(module, facts, args, kwargs), decompositions)
            if function is not None:
                return Recalled(key, traced, function, facts, module, args, kwargs)
        except (KeyError, IndexError, AttributeError, ValueError, TypeError) as error:
            disk.discard(program, error)
    return None


class Recalled:
    """A call that dynamo has not seen in this process."""

    def __init__(self, key, traced, function, facts, module, args, kwargs):
        own, given = tensors_of(module), leaves(args, kwargs)
        self._key, self._traced, self._function, self._facts = key.follow(traced), traced, function, facts
        self._signature, self._watch = key.signature, key.watch
        self._arguments, self._given = [], []  # the graph's: the module's own, and (position, whether in kwargs, path)
        for i, place in enumerate(facts["places"]):
            if isinstance(place, tuple):
                given[place]
                self._given.append((i, place[0] == "kwargs", place[1:]))
            self._arguments.append(None if isinstance(place, tuple) else own[place])
        self._written = [self._arguments[i] for i in function.written]
        if len(self._arguments) != function.inputs or any(tensor is None for tensor in self._written):
            raise ValueError("its inputs are others")
        if _numbers_in(facts["results"]) != set(range(function.outputs)):
            raise ValueError("its outputs are others")
        self._make_results = _maker(facts["results"], key.classes())
        self.shapes = {path: leaf.shape for path, leaf in given.items()}

    def renewed(self, key, module, args, kwargs):
        """The same call for the module's current tensors; None if its key has changed."""
        if key.follow(self._traced) != self._key:
            return None
        return Recalled(key, self._traced, self._function, self._facts, module, args, kwargs)

    def fits(self, args, kwargs) -> bool:
        """True if this recalled call applies to these arguments."""
        if not self._watch.unchanged() or not self._signature.matches(args, kwargs):
            return False
        return not self._written or not any(share_memory(x, tensor) for _, x in self._inputs(args, kwargs) for tensor in self._written)

    def _inputs(self, args, kwargs):
        """(position, tensor) of those that the caller gives."""
        for position, in_kwargs, path in self._given:
            found = kwargs if in_kwargs else args
            for step in path:
                found = found[step]
            yield position, found

    def __call__(self, args, kwargs):
        arguments = self._arguments.copy()
        for position, tensor in self._inputs(args, kwargs):
            lazy = tensor.is_neg() or tensor.is_conj()
            arguments[position] = tensor.resolve_conj().resolve_neg() if lazy else tensor
        return self._make_results(self._function(*arguments), {})


class _Eager:
    """A graph's outputs from the module itself, for derivatives of derivatives."""

    def __init__(self, module, facts, args, kwargs):
        self._module, self._results = module, facts["results"]
        self._names = {place: i for i, place in enumerate(facts["places"]) if not isinstance(place, tuple)}
        position = {place: i for i, place in enumerate(facts["places"])}
        paths = {id(leaf): position.get(path) for path, leaf in leaves(args, kwargs).items()}
        values, self._form = tree_flatten((args, kwargs))
        numbers = [paths.get(id(value)) if isinstance(value, torch.Tensor) else None for value in values]
        self._values = [(i, value if i is None else None) for i, value in zip(numbers, values)]  # an argument's number, or what stays

    def forward(self, *arguments):
        own = {name: arguments[i] for name, i in self._names.items()}
        args, kwargs = tree_unflatten([v if i is None else arguments[i] for i, v in self._values], self._form)
        outputs = {}
        _collect(self._results, torch.func.functional_call(self._module, own, args, kwargs), outputs)
        return [outputs[i] for i in range(len(outputs))]


# --- Results: ("tensor", number among the outputs), ("value", what it is), ("tuple", parts), ("list", number, parts),
# ("dict", number, rows), ("object", number, module and name of its class, rows of the dict that it is or None, rows of its
# attributes), ("again", number) for what was met before; rows: (key, part).

def _describe(results, numbers, key):
    """Raises KeyError for what is none of these. numbers: the outputs', by id."""
    classes, seen = key.classes(), {}

    def describe(value):
        if isinstance(value, torch.Tensor):
            return "tensor", numbers[id(value)]
        kind = type(value)
        if kind in _VALUES:
            return "value", value
        if kind is tuple:
            return "tuple", [describe(part) for part in value]
        if key.reached(value):  # another one would not be the same
            raise KeyError(kind)
        if id(value) in seen:
            return "again", seen[id(value)]
        number = seen[id(value)] = len(seen)
        if kind is list:
            return "list", number, [describe(part) for part in value]
        if kind is dict:
            return "dict", number, rows(value)
        name = kind.__module__, kind.__qualname__
        if classes.get(name) is not kind or not _is_made_here(kind):
            raise KeyError(kind)
        items = rows(dict(collections.OrderedDict.items(value))) if issubclass(kind, collections.OrderedDict) else None
        return "object", number, name, items, rows(vars(value))

    def rows(items):
        if any(type(name) not in (str, int) for name in items):
            raise KeyError(type(items))
        return [(name, describe(part)) for name, part in items.items()]

    return describe(results)


def _is_made_here(kind) -> bool:
    """True if objects of the class consist only of their attributes, and the items of an ordered dict."""
    base = collections.OrderedDict if issubclass(kind, collections.OrderedDict) else object
    return is_plain_class(kind) and kind.__new__ is base.__new__


def _parts_of(node) -> list:
    kind, *held = node
    if kind in ("tuple", "list"):
        return held[-1]
    return [part for rows in held if isinstance(rows, list) for _, part in rows] if kind in ("dict", "object") else []


def _numbers_in(node) -> set:
    """The numbers of the outputs that `node` uses."""
    return {node[1]} if node[0] == "tensor" else set().union(*map(_numbers_in, _parts_of(node)))


def _maker(node, classes):
    """A function of a graph's outputs, and a dict of what is met again, that makes the results."""
    kind, *held = node
    if kind == "tensor":
        (number,) = held
        return lambda outputs, made: outputs[number]
    if kind == "value":
        (value,) = held
        return lambda outputs, made: value
    if kind == "again":
        (number,) = held
        return lambda outputs, made: made[number]
    if kind == "tuple":
        parts = [_maker(part, classes) for part in held[0]]
        return lambda outputs, made: tuple(make(outputs, made) for make in parts)
    if kind == "list":
        number, parts = held[0], [_maker(part, classes) for part in held[1]]

        def make_list(outputs, made):
            result = made[number] = []
            result.extend(make(outputs, made) for make in parts)
            return result

        return make_list

    def rows(pairs):
        return [(name, _maker(part, classes)) for name, part in pairs]

    if kind == "dict":
        number, pairs = held[0], rows(held[1])

        def make_dict(outputs, made):
            result = made[number] = {}
            result.update((name, make(outputs, made)) for name, make in pairs)
            return result

        return make_dict
    if kind != "object":
        raise ValueError(f"results hold no {kind}")
    number, (module, name), items, attributes = held[0], held[1], rows(held[2] or ()), rows(held[3])
    cls = classes[module, name]
    if cls is None or not _is_made_here(cls) or (held[2] is not None) != issubclass(cls, collections.OrderedDict):
        raise ValueError(f"results hold no {module}.{name}")

    def make_object(outputs, made):
        result = made[number] = cls.__new__(cls)
        for name, make in items:
            collections.OrderedDict.__setitem__(result, name, make(outputs, made))
        vars(result).update((name, make(outputs, made)) for name, make in attributes)
        return result

    return make_object


def _collect(node, value, outputs: dict) -> None:
    """The inverse of _maker(): the outputs by number."""
    kind, *held = node
    if kind == "tensor":
        outputs[held[0]] = value
    elif kind in ("tuple", "list"):
        for part, inner in zip(held[-1], value, strict=True):
            _collect(part, inner, outputs)
    elif kind == "dict":
        for name, part in held[1]:
            _collect(part, value[name], outputs)
    elif kind == "object":
        for name, part in held[2] or ():
            _collect(part, collections.OrderedDict.__getitem__(value, name), outputs)
        for name, part in held[3]:
            _collect(part, vars(value)[name], outputs)
