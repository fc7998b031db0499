# SPDX-License-Identifier: Apache-2.0
"""Matrix products. A matrix made by flattening a tensor of rows is read, and returned, as that tensor."""

import torch

import caesura.capture.ops.matmul_nbits  # noqa: F401  the operators
from caesura.lowering.onnx_builder import DOMAIN, Tensor
from caesura.lowering.ops.elementwise import operand
from caesura.lowering.registry import aten, register
from caesura.rewrites.fx_meta import result


def product(w, a, b, dtype, shape) -> Tensor:
    """a @ b for matrices and batches of them; the rows of `a` keep the axes that they had before they were flattened."""
    rows = w.rows_of(a)
    if rows is None or b.rank != 2:
        return w.make("MatMul", [a, b], dtype, shape)
    made = w.make("MatMul", [rows, b], dtype, [*rows.shape[:-1], shape[-1]])
    return w.reshape(made, shape)


def _add(w, y, addend, beta, alpha, dtype, shape):
    """beta * addend + alpha * y."""
    if alpha != 1:
        y = w.make("Mul", [y, operand(w, alpha, dtype)], dtype, shape)
    if beta == 0:
        return y
    if beta != 1:
        addend = w.make("Mul", [addend, operand(w, beta, dtype)], dtype, addend.shape)
    kind, rows, _ = w.origin.get(y.name, (None, None, None))
    if kind == "Reshape" and addend.rank == 1:  # a row is added to rows, however they are arranged
        made = w.make("Add", [rows, addend], dtype, rows.shape)
        return w.reshape(made, shape)
    return w.make("Add", [y, addend], dtype, shape)


@register(aten.mm.default, aten.bmm.default, aten.matmul.default)
def mm(w, node, a, b):
    return product(w, a, b, *result(node))


@register(aten.addmm.default, aten.baddbmm.default)
def addmm(w, node, addend, a, b, beta, alpha):
    dtype, shape = result(node)
    return _add(w, product(w, a, b, dtype, shape), addend, beta, alpha, dtype, shape)


@register(aten.linear.default)
def linear(w, node, x, weight, bias):
    dtype, shape = result(node)
    y = w.make("MatMul", [x, w.transpose(weight, range(weight.rank)[::-1])], dtype, shape)
    return y if bias is None else w.make("Add", [y, bias], dtype, shape)


@register(aten.mv.default, aten.dot.default)
def mv(w, node, a, b):
    return w.make("MatMul", [a, b], *result(node))


def _by_blocks(op_type, domain, w, x, columns, qweight, scales, zero_points, bits, in_features):
    y = w.make(op_type, [w.cast(x, scales.dtype), qweight, scales, zero_points], scales.dtype, (*x.shape[:-1], columns), domain=domain,
               K=in_features, N=qweight.shape[0], bits=bits, block_size=qweight.shape[2] * 8 // bits)
    return w.cast(y, x.dtype)


@register(torch.ops.caesura.matmul_nbits.default)
def matmul_nbits(w, node, x, qweight, *others):
    return _by_blocks("MatMulNBits", "com.microsoft", w, x, qweight.shape[0], qweight, *others)


@register(torch.ops.caesura.transposed_matmul_nbits.default)
def transposed_matmul_nbits(w, node, x, qweight, *others):
    return _by_blocks("TransposedMatMulNBits", DOMAIN, w, x, others[-1], qweight, *others)


@register(aten._trilinear.default)
def trilinear(w, node, a, b, c, expanded_a, expanded_b, expanded_c, summed, unrolled):
    """The product of three tensors with axes of size 1 at `expanded`, summed over the axes `summed`."""
    dtype, shape = result(node)
    rank = a.rank + len(expanded_a)
    axes = [chr(ord("a") + d) for d in range(rank)]
    terms = ["".join(axis for d, axis in enumerate(axes) if d not in gone)
             for gone in (expanded_a, expanded_b, expanded_c, summed)]
    return w.make("Einsum", [a, b, c], dtype, shape, equation=f"{','.join(terms[:3])}->{terms[3]}")
