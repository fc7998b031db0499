# SPDX-License-Identifier: Apache-2.0
"""Compiled steps kept on disk (disk.py), and read back without a capture.

A program's key (keys.py) holds: the module with all that it refers to (attributes, its classes, training mode, hooks,
which tensors are shared, their dtypes, shapes, strides and whether they require a gradient), the loss function, the
code that was traced of both with what it names, which parameters the optimizer trains, the arguments (tensors as above,
all else by value), `dynamic`, `masks`, this package's sources, and what fingerprint.py adds: releases of Python, PyTorch and
ONNX, and PyTorch's modes, defaults and settings. The key does not hold the elements of tensors, nor the settings that a
program is opened with (the optimizer's class and options, clipping, precision, threads, passes, the machine's
instructions). A file holds the forward as an ONNX model, and the places of its inputs.

A program is kept if its shapes are fixed, its call does nothing except the step, and a key can describe its module.
"""

import onnx
from google.protobuf.message import DecodeError

from caesura.cache import disk, keys
from caesura.cache.fingerprint import Unkeyed
from caesura.capture.sources import leaves, named, tensors_of
from caesura.lowering.onnx_builder import onnx_type


class StepKey(keys.Key):
    """A call's key. Raises Unkeyed if the call has none."""

    def __init__(self, owner, args, kwargs):
        if any(tensor.requires_grad for tensor in leaves(args, kwargs).values()):
            raise Unkeyed("arguments that require a gradient")
        self._of = owner, args, kwargs
        super().__init__()

    def _fill(self, fingerprint):
        owner, args, kwargs = self._of
        fingerprint.add(owner.module)
        fingerprint.add(owner.loss_fn)
        signature = fingerprint.add_call(args, kwargs)
        self._names = named(owner.module)
        if not owner._recipe.trained.keys() <= self._names.keys():
            raise Unkeyed("an optimizer of parameters that the module does not have")
        fingerprint.add((owner.dynamic, owner.masks, *sorted(self._names[i] for i in owner._recipe.trained)))
        return signature

    def fits(self, program) -> bool:
        """True if an already opened program has this key and uses the module's current tensors."""
        return bool(program.key) and program.session is not None and self.follow(program.traced) == program.key and all(
            self._names.get(id(value)) == name for name, _, value in program.bound)


def store(key: StepKey, program) -> None:
    """Keeps a program that has its `key`, `traced` and `places`."""
    facts = {"bound": [name for name, _, _ in program.bound], "feeds": program.places}
    disk.store(program.key, facts, program.forward.SerializeToString())
    key.note(program.traced)


def load(key: StepKey, owner, args, kwargs):
    """(traced, key, model, bound (name, tensor), places) of the call's program; None if there is none."""
    for traced, program in key.programs():
        content = disk.load(program)
        if content is None:
            continue
        try:
            return traced, program, *_read(*content, owner, leaves(args, kwargs))
        except (ValueError, TypeError, DecodeError) as error:
            disk.discard(program, error)
    return None


def _read(facts, content, owner, arguments):
    if facts.keys() != {"bound", "feeds"} or not all(isinstance(rows, list) for rows in facts.values()):
        raise ValueError("its facts are others")
    own, trained = tensors_of(owner.module), owner._recipe.trained
    model = onnx.ModelProto.FromString(content)
    bound = {name: _at(own, name) for name in facts["bound"]}
    places = [(name, tuple(place) if isinstance(place, list) else place) for name, place in facts["feeds"]]
    feeds = {name: _at(arguments if isinstance(place, tuple) else own, place) for name, place in places}
    if any(id(value) in trained for value in feeds.values()):
        raise ValueError("it does not train what is to be trained")
    inputs, given = {i.name: i.type.tensor_type for i in model.graph.input}, bound | feeds
    if inputs.keys() != given.keys() or len(given) != len(facts["bound"]) + len(places):
        raise ValueError("its inputs are others")
    for name, value in given.items():
        shape = [d.dim_value for d in inputs[name].shape.dim]
        if inputs[name].elem_type != onnx_type(value.dtype) or shape != list(value.shape):
            raise ValueError(f"its input '{name}' is another tensor")
    return model, list(bound.items()), places


def _at(table, key):
    if key not in table:
        raise ValueError(f"there is no tensor {key}")
    return table[key]
