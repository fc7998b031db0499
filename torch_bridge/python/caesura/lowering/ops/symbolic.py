# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on numbers. SymInts are int64 scalars of the graph, which the plan computes on the host. SymFloats, and
numbers read from tensors of floats, are float64 scalars, as in Python."""

import functools
import operator

import torch

from caesura.lowering.onnx_builder import Scalar
from caesura.lowering.ops.elementwise import operand
from caesura.lowering.registry import TABLE, Refused, aten, register


def _binary(op_type):
    def write(w, node, a, b):
        is_float = not isinstance(node.meta["val"], (torch.SymInt, int))
        made = w.op(op_type, [operand(w, value, torch.float64) if is_float else w.scalar(value) for value in (a, b)])
        return Scalar(made, node.meta["val"])
    return write


for _function, _op_type in ((operator.add, "Add"), (operator.sub, "Sub"), (operator.mul, "Mul"),
                            (operator.truediv, "Div"), (torch.sym_max, "Max"), (torch.sym_min, "Min")):
    TABLE[_function] = _binary(_op_type)


@register(torch.sym_sum)
def sym_sum(w, node, sizes):
    return Scalar(functools.reduce(lambda a, b: w.op("Add", [a, b]), map(w.scalar, sizes)), node.meta["val"])


@register(operator.floordiv)
def floordiv(w, node, a, b):
    # Sizes are not negative: towards zero is down.
    if isinstance(b, int) and b <= 0:
        raise Refused("floor division by a number that is not positive")
    return Scalar(w.op("Div", [w.scalar(a), w.scalar(b)]), node.meta["val"])


@register(operator.mod)
def mod(w, node, a, b):
    return Scalar(w.op("Mod", [w.scalar(a), w.scalar(b)]), node.meta["val"])


@register(operator.neg)
def neg(w, node, a):
    return Scalar(w.op("Neg", [w.scalar(a)]), node.meta["val"])


@register(aten.sym_size.int)
def sym_size(w, node, x, axis):
    if isinstance(x.shape[axis], int):
        return Scalar(w.scalar(x.shape[axis]).name, x.shape[axis])
    size = w.op("Shape", [x], start=axis % x.rank, end=axis % x.rank + 1)
    return Scalar(w.op("Squeeze", [size, w.constant([0])]), node.meta["val"])


@register(aten.sym_numel.default)
def sym_numel(w, node, x):
    return Scalar(w.op("Size", [x]), node.meta["val"])


# --- values of tensors -------------------------------------------------------------------------------------------

@register(aten._local_scalar_dense.default)
def local_scalar(w, node, x):
    x = w.reshape(x, ())
    if x.dtype.is_floating_point:
        return Scalar(w.cast(x, torch.float64).name, node.meta["val"])
    if not isinstance(node.meta["val"], torch.SymInt):
        raise Refused("a truth value that decides what runs")
    return Scalar(w.cast(x, torch.int64).name, node.meta["val"])


@register(torch.sym_float)
def sym_float(w, node, value):
    return Scalar(operand(w, value, torch.float64).name, node.meta["val"])
