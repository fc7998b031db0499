# SPDX-License-Identifier: Apache-2.0
"""Compiled steps kept on disk (program_cache.py), and read back without a capture.

A program's key holds: the module with all that it refers to (its classes' code and whatever that code reads, attributes,
training mode, hooks, which tensors are shared, their dtypes, shapes, strides and whether they require a gradient), the loss
function likewise, which parameters the optimizer trains, the arguments (tensors as above, all else by value), `dynamic`,
this package's sources, and what fingerprint.py adds: releases of Python, PyTorch and ONNX, and PyTorch's modes, defaults and
settings. Not in it: the elements of tensors, and what a program is opened with (the optimizer's class and options, clipping,
precision, threads, passes, the machine's instructions). A file holds the forward as an ONNX model, and where its inputs are.

Kept are programs with fixed shapes whose call does nothing beside the step, of modules that a key can hold. The capture has
the last word: what PyTorch has traced must be among the code that the key was made of.
"""

import onnx
import torch
from google.protobuf.message import DecodeError

from caesura import program_cache
from caesura.aten.writer import onnx_type
from caesura.fingerprint import Fingerprint, Unkeyed, is_known
from caesura.places import leaves, named, tensors_of


class Key:
    """A call's key. Raises Unkeyed where it has none."""

    def __init__(self, owner, args, kwargs):
        if any(tensor.requires_grad for tensor in leaves(args, kwargs).values()):
            raise Unkeyed("arguments that require a gradient")
        fingerprint = Fingerprint()
        fingerprint.add(owner.module)
        fingerprint.add(owner.loss_fn)
        self.signature = fingerprint.add_call(args, kwargs)
        self._names = named(owner.module)
        if not owner.recipe.trained.keys() <= self._names.keys():
            raise Unkeyed("an optimizer of parameters that the module does not have")
        fingerprint.add((owner.dynamic, *sorted(self._names[i] for i in owner.recipe.trained)))
        self.text, self.watch = fingerprint.key(), fingerprint.watch
        self._code = {*fingerprint.code, type(owner)._loss.__code__}  # that is of this package's sources

    def fits(self, program) -> bool:
        """Whether a program that was opened before is this key's, on the tensors that the module has now."""
        return program.key == self.text and program.session is not None and all(
            self._names.get(id(value)) == name for name, _, value in program.bound)

    def covers(self, capture) -> bool:
        """Whether all that a capture has read of the world is in the key."""
        return capture.is_fixed and all(code in self._code or is_known(code.co_filename) for code in capture.code)


def store(key: Key, program) -> None:
    """Keeps a program that has its `places`."""
    facts = {"bound": [name for name, _, _ in program.bound], "feeds": program.places}
    program_cache.store(key.text, facts, program.forward.SerializeToString())


def load(key: Key, owner, args, kwargs):
    """(model, bound (name, tensor), places) of the key's program; None where there is none."""
    content = program_cache.load(key.text)
    if content is None:
        return None
    try:
        return _read(*content, owner, leaves(args, kwargs))
    except (ValueError, TypeError, DecodeError) as error:
        program_cache.discard(key.text, error)
        return None


def _read(facts, content, owner, arguments):
    if facts.keys() != {"bound", "feeds"} or not all(isinstance(rows, list) for rows in facts.values()):
        raise ValueError("its facts are others")
    own, trained = tensors_of(owner.module), owner.recipe.trained
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
