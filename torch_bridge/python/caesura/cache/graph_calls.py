# SPDX-License-Identifier: Apache-2.0
"""Keeps calls of captured graphs on disk (disk.py), so that a later process finds the same graph's call.

A graph's key holds: its nodes (what is called, with what, and from which lines of the user's source), its inputs (dtypes,
shapes, strides, whether they require a gradient, and which kind of tensor they are), and what fingerprint.py adds: this
package's sources, releases, PyTorch's modes, defaults and settings. The elements of tensors are not part of the key.

A graph is kept if its shapes are fixed, its inputs share no memory, it calls only PyTorch's own functions, and it holds
no other graphs.
"""

import json

import torch

from caesura.cache import disk
from caesura.cache.fingerprint import PLAIN, Fingerprint, Unkeyed
from caesura.capture.compat import storage_id
from caesura.errors import StrictError
from caesura.reports import fall_back
from caesura.runtime.autograd_call import open_call, registered


def key_of(module: torch.fx.GraphModule, inputs) -> str:
    """The key of a Dynamo graph. Raises Unkeyed if the graph has none."""
    fingerprint, number = Fingerprint(), {}
    for node in module.graph.nodes:
        if node.op not in ("placeholder", "call_function", "call_method", "output"):
            raise Unkeyed(f"a graph with a {node.op}")
        if node.op == "call_function":
            fingerprint.add(node.target)
        fingerprint.add(" ".join((node.op, str(node.target) if node.op == "call_method" else "", _text(node.args, number),
                                  _text(node.kwargs, number), node.meta.get("stack_trace") or "")))
        number[node] = len(number)
    memory = set()
    for tensor in inputs:
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.device.type not in ("cpu", "cuda"):
            raise Unkeyed("inputs that are no tensors of the CPU or a GPU, or sizes that change")
        if not all(isinstance(d, int) for d in (*tensor.shape, *tensor.stride(), tensor.storage_offset())):
            raise Unkeyed("sizes that change")
        memory.add(storage_id(tensor))
        fingerprint.add(" ".join(map(str, (
            type(tensor), tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.requires_grad,
            tensor.is_leaf, tensor._is_view(), tensor.is_conj(), tensor.is_neg(), tensor.is_inference()))))
    if len(memory) != len(inputs):
        raise Unkeyed("inputs that share memory")
    if fingerprint.functions:
        raise Unkeyed("a graph that calls other functions than PyTorch's")
    return fingerprint.key()


def _text(value, number) -> str:
    """An argument of a node, with nodes replaced by their numbers."""
    if isinstance(value, torch.fx.Node):
        return f"%{number[value]}"
    if isinstance(value, (list, tuple)):
        return f"{'list' if isinstance(value, list) else 'tuple'}({', '.join(_text(v, number) for v in value)})"
    if isinstance(value, dict):
        return "dict(" + ", ".join(f"{k!r}: {_text(v, number)}" for k, v in value.items()) + ")"
    if isinstance(value, slice):
        return f"slice({', '.join(_text(v, number) for v in (value.start, value.stop, value.step))})"
    if type(value) not in PLAIN:
        raise Unkeyed(f"an argument that is a {type(value).__name__}")
    return f"{type(value).__name__} {value!r}"


def store(key: str, facts: dict) -> bool:
    """Keeps a call (autograd_call.describe_call), unless packed() cannot hold a part of it."""
    content = bytearray()
    try:
        facts = packed(facts, content)
        json.dumps(facts)
    except TypeError:
        return False
    disk.store(key, {"call": facts}, bytes(content))
    return True


def load(key: str, module, decompositions):
    """The callable for a graph with that key; None if there is none."""
    content = disk.load(key) if registered() else None
    if content is None:
        return None
    try:
        facts = unpacked(content[0]["call"], content[1])
        fall_back(facts["problems"])
        call = open_call(module, facts, decompositions)
        call.key = key
        return call
    except StrictError:
        return None  # a capture tells which half it is
    except (KeyError, IndexError, AttributeError, ValueError, TypeError, RuntimeError, MemoryError) as error:
        disk.discard(key, error)
        return None


_NAMED = (torch.dtype, torch.device, torch.layout)  # of PyTorch's, by name


def packed(value, content: bytearray):
    """`value` for JSON; bytes and tensors are appended to `content`. Raises TypeError for any other object."""
    if isinstance(value, dict):
        return {"dict": [[name, packed(part, content)] for name, part in value.items()]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [packed(part, content) for part in value]}
    if isinstance(value, torch.Tensor):
        if not value.is_contiguous() or value.layout != torch.strided:
            raise TypeError("a constant that is not dense")
        data = value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return {"tensor": [str(value.dtype), list(value.shape), packed(data, content), str(value.device)]}
    if isinstance(value, bytes):
        content += value
        return {"bytes": [len(content) - len(value), len(content)]}
    if isinstance(value, _NAMED):
        return {type(value).__name__: str(value)}
    return value


def unpacked(value, content: bytes):
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "dict":
        return {name: unpacked(part, content) for name, part in held}
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](unpacked(part, content) for part in held)
    if kind == "bytes":
        return content[held[0]:held[1]]
    if kind == "tensor":
        dtype, shape, data = _named(held[0], torch.dtype), held[1], unpacked(held[2], content)
        tensor = torch.frombuffer(bytearray(data) or bytearray(1), dtype=torch.uint8)[:len(data)].view(dtype).reshape(shape)
        return tensor.to(torch.device(held[3]))
    return torch.device(held) if kind == "device" else _named(held, {"dtype": torch.dtype, "layout": torch.layout}[kind])


def _named(name: str, kind):
    value = getattr(torch, name.removeprefix("torch."))
    if not isinstance(value, kind):
        raise ValueError(f"{name} is no {kind.__name__}")
    return value
