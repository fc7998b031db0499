# SPDX-License-Identifier: Apache-2.0
"""Calls of wrapped modules kept on disk, so that another process traces nothing: which graph's call (call_cache.py) it is,
where that graph's inputs lie, and how the results are made of its outputs.

A call's key holds: the module with all that it refers to (as in step_cache.py, and the lines where its code is), the
arguments (tensors by dtype, shape and whether they require a gradient, all else by value), `dynamic`, and what
fingerprint.py adds.

Kept are calls that were one graph of fixed shapes, whose results are tensors of that graph and plain values, in tuples,
lists, dicts and objects of Python classes that the module's code names, and behind which all that the key was made of is
as it was. As with steps, what PyTorch has traced must be among the code that the key was made of.
"""

import collections
import contextlib
import functools
import operator

import torch
from torch.utils import _pytree as pytree

from caesura import call_cache, captured_call, program_cache
from caesura.fingerprint import Fingerprint, Unkeyed, is_known, is_plain_class
from caesura.places import leaves, named, tensors_of

_VALUES = {type(None), bool, int, float, str, torch.dtype, torch.device}  # that results may hold


class Key:
    """A call's key. Raises Unkeyed where it has none."""

    def __init__(self, module, dynamic, args, kwargs):
        self._of = module, dynamic, args, kwargs
        self._fingerprint = fingerprint = Fingerprint()
        fingerprint.add(module)
        self.signature = fingerprint.add_call(args, kwargs)
        fingerprint.add(("wrap", dynamic))
        fingerprint.key()
        fingerprint.add(tuple(sorted((c.co_filename, c.co_firstlineno) for c in fingerprint.code)))  # which warnings name
        self.text, self.watch = fingerprint.key(), fingerprint.watch
        for mode in (torch._C._len_torch_dispatch_stack, torch._C._functorch.maybe_current_level):
            self.watch.returns(mode, mode())

    def holds(self) -> bool:
        """Whether the same call has the same key now. The watch would not tell: dynamo changes Module at its first graph."""
        try:
            return Key(*self._of).text == self.text
        except Unkeyed:
            return False

    def covers(self, code) -> bool:
        """Whether all code that was traced is in it."""
        return all(c in self._fingerprint.code or is_known(c.co_filename) for c in code)

    def reached(self, value) -> bool:
        """Whether it was made of this object."""
        return self._fingerprint.reached(value)

    @functools.cached_property
    def classes(self) -> dict:
        """Those in it, by module and name; None where two have the same."""
        found = {}
        for cls in self._fingerprint.classes():
            name = cls.__module__, cls.__qualname__
            found[name] = None if name in found else cls
        return found


@contextlib.contextmanager
def recording():
    """A list of what calls of graphs run meanwhile: (function, arguments, outputs)."""
    records = []
    captured_call.watching.append(records)
    try:
        yield records
    finally:
        captured_call.watching.remove(records)


def store(key: Key, records, results, wrapper, module, args, kwargs) -> bool:
    """Keeps a call that has just been made, if it can be kept. wrapper: the code that calls the module."""
    if len(records) != 1 or not key.holds():
        return False
    ((function, arguments, outputs),) = records
    if function.key is None or not key.covers(code for code in function.code if code is not wrapper):
        return False
    places = {id(leaf): path for path, leaf in leaves(args, kwargs).items()}
    if any(id(arguments[i]) in places for i in function.written):
        return False
    places |= named(module)
    numbers = {id(tensor): i for i, tensor in enumerate(outputs)}
    try:
        facts = {"call": function.key, "places": [places[id(tensor)] for tensor in arguments],
                 "results": _describe(results, numbers, key, set())}
    except KeyError:
        return False
    if _numbers_in(facts["results"]) != set(range(len(outputs))):
        return False
    program_cache.store(key.text, {"module": call_cache.packed(facts, bytearray())}, b"")
    return True


def load(key: Key, decompositions, module, args, kwargs):
    """The Recalled of that key; None where there is none."""
    content = program_cache.load(key.text)
    if content is None:
        return None
    try:
        facts = call_cache.unpacked(content[0]["module"], content[1])
        function = call_cache.load(facts["call"], _Eager(module, facts, args, kwargs), decompositions)
        return function and Recalled(key, function, facts, module, args, kwargs)
    except (KeyError, IndexError, AttributeError, ValueError, TypeError) as error:
        program_cache.discard(key.text, error)
        return None


class Recalled:
    """A call that dynamo has not seen in this process."""

    def __init__(self, key, function, facts, module, args, kwargs):
        own, given = tensors_of(module), leaves(args, kwargs)
        self.text, self._function, self._facts = key.text, function, facts
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
        self._make_results = _maker(facts["results"], key.classes)
        self.shapes = {path: leaf.shape for path, leaf in given.items()}

    def renewed(self, key, module, args, kwargs):
        """The same for the module as it is now, whose key is that of before."""
        return Recalled(key, self._function, self._facts, module, args, kwargs)

    def fits(self, args, kwargs) -> bool:
        """Whether it is for such a call."""
        if not self._watch.unchanged() or not self._signature.matches(args, kwargs):
            return False
        return not self._written or not any(leaf is tensor for leaf in leaves(args, kwargs).values() for tensor in self._written)

    def __call__(self, args, kwargs):
        arguments = self._arguments.copy()
        for position, in_kwargs, path in self._given:
            found = kwargs if in_kwargs else args
            for step in path:
                found = found[step]
            if found.is_neg() or found.is_conj():
                found = found.resolve_conj().resolve_neg()
            arguments[position] = found
        return self._make_results(self._function(*arguments))


class _Eager:
    """A graph's outputs from the module itself, for derivatives of derivatives."""

    def __init__(self, module, facts, args, kwargs):
        self._module, self._results = module, facts["results"]
        self._names = {place: i for i, place in enumerate(facts["places"]) if not isinstance(place, tuple)}
        position = {place: i for i, place in enumerate(facts["places"])}
        paths = {id(leaf): position.get(path) for path, leaf in leaves(args, kwargs).items()}
        values, self._form = pytree.tree_flatten((args, kwargs))
        # A number of an argument, or what stays. A tensor that the graph does not read is of no matter.
        self._values = [(paths[id(v)], None) if isinstance(v, torch.Tensor) else (None, v) for v in values]

    def __call__(self, *arguments):
        own = {name: arguments[i] for name, i in self._names.items()}
        args, kwargs = pytree.tree_unflatten([v if i is None else arguments[i] for i, v in self._values], self._form)
        outputs = {}
        _collect(self._results, torch.func.functional_call(self._module, own, args, kwargs), outputs)
        return [outputs[i] for i in range(len(outputs))]


# --- Results: ("tensor", number among the outputs), ("value", what it is), ("tuple" or "list", parts), ("dict", rows), or
# ("object", module and name of its class, rows of a dict that it is or None, rows of its attributes); rows: (key, part).

class _Ordered(collections.OrderedDict):
    """As big as an ordered dict is that holds nothing outside of Python's sight."""


def _describe(value, numbers, key, seen):
    """Raises KeyError for what is none of these."""
    if isinstance(value, torch.Tensor):
        return "tensor", numbers[id(value)]
    kind = type(value)
    if kind in _VALUES:
        return "value", value
    if kind is tuple:
        return "tuple", [_describe(part, numbers, key, seen) for part in value]
    if id(value) in seen or key.reached(value):  # another one would not be the same
        raise KeyError(kind)
    seen.add(id(value))

    def rows(items):
        if any(type(name) not in (str, int) for name in items):
            raise KeyError(kind)
        return [(name, _describe(part, numbers, key, seen)) for name, part in items.items()]

    if kind is list:
        return "list", [_describe(part, numbers, key, seen) for part in value]
    if kind is dict:
        return "dict", rows(value)
    name = kind.__module__, kind.__qualname__
    if key.classes.get(name) is not kind or not _is_made_here(kind):
        raise KeyError(kind)
    items = dict(collections.OrderedDict.items(value)) if isinstance(value, collections.OrderedDict) else None
    return "object", name, None if items is None else rows(items), rows(vars(value))


def _is_made_here(kind) -> bool:
    """Whether an object is its attributes, or with them an ordered dict, alone."""
    if issubclass(kind, collections.OrderedDict):
        return kind.__basicsize__ == _Ordered.__basicsize__ and kind.__new__ is _Ordered.__new__
    return is_plain_class(kind) and kind.__new__ is object.__new__


def _numbers_in(node) -> set:
    kind, *parts = node
    if kind in ("tensor", "value"):
        return {parts[0]} if kind == "tensor" else set()
    inner = parts[0] if kind in ("tuple", "list") else [part for rows in parts[-2:] if rows for _, part in rows]
    return set().union(*map(_numbers_in, inner))


def _maker(node, classes):
    """A function of a graph's outputs that makes the results."""
    kind, *parts = node
    if kind == "tensor":
        return operator.itemgetter(parts[0])
    if kind == "value":
        return lambda outputs: parts[0]
    if kind in ("tuple", "list"):
        made, inner = {"tuple": tuple, "list": list}[kind], [_maker(part, classes) for part in parts[0]]
        return lambda outputs: made([make(outputs) for make in inner])

    def rows(pairs):
        return [(name, _maker(part, classes)) for name, part in pairs]

    if kind == "dict":
        inner = rows(parts[0])
        return lambda outputs: {name: make(outputs) for name, make in inner}
    if kind != "object":
        raise ValueError(f"results hold no {kind}")
    cls, items, attributes = classes[tuple(parts[0])], rows(parts[1] or ()), rows(parts[2])
    if cls is None or not _is_made_here(cls) or (parts[1] is not None) != issubclass(cls, collections.OrderedDict):
        raise ValueError(f"results hold no {parts[0]}")

    def make_object(outputs):
        result = cls.__new__(cls)
        for name, make in items:
            collections.OrderedDict.__setitem__(result, name, make(outputs))
        vars(result).update((name, make(outputs)) for name, make in attributes)
        return result

    return make_object


def _collect(node, value, outputs: dict) -> None:
    """_maker() the other way round: the outputs by number."""
    kind, *parts = node
    if kind == "tensor":
        outputs[parts[0]] = value
    elif kind in ("tuple", "list"):
        for part, inner in zip(parts[0], value, strict=True):
            _collect(part, inner, outputs)
    elif kind in ("dict", "object"):
        *_, items, attributes = (None, None, parts[0]) if kind == "dict" else parts
        for name, part in items or ():
            _collect(part, collections.OrderedDict.__getitem__(value, name), outputs)
        for name, part in attributes:
            _collect(part, value[name] if kind == "dict" else vars(value)[name], outputs)
