# SPDX-License-Identifier: Apache-2.0
"""Reductions and ops along an axis: sums, means, extremes, softmax."""

import math

import torch

from caesura.lowering.onnx_builder import DOMAIN, Tensor, positive
from caesura.lowering.registry import Refused, aten, register
from caesura.rewrites.fx_meta import is_read, result


def _axes(axes, rank):
    if axes is None or (isinstance(axes, list) and not axes):
        return list(range(rank))
    axes = axes if isinstance(axes, list) else [axes]
    return sorted(positive(a, rank) for a in axes)


def reduce(w, op_type, x, axes, keepdim, dtype, shape):
    if x.rank == 0:
        return x
    return w.make(op_type, [x, w.constant(axes)], dtype, shape, keepdims=int(keepdim))


@register(aten.sum.dim_IntList)
def sum_(w, node, x, axes, keepdim, *options):
    dtype, shape = result(node)
    x, axes = w.cast(x, dtype), _axes(axes, x.rank)
    rows = w.rows_of(x)
    if rows is not None and axes == [0]:  # the matrix is a tensor of rows: sum over all that is not the row
        x, axes = rows, list(range(rows.rank - 1))
    # A sum over leading axes undoes a broadcast; it is written as our gradient rules write it.
    if dtype.is_floating_point and axes == list(range(len(axes))) and axes and len(axes) < x.rank:
        row = Tensor(w.op("SumTo", [x, w.ints(x.shape[len(axes):])], domain=DOMAIN), dtype, tuple(x.shape[len(axes):]))
        return w.reshape(row, shape) if keepdim else row
    return reduce(w, "ReduceSum", x, axes, keepdim, dtype, shape)


@register(aten.sum.default)
def sum_all(w, node, x, *options):
    return reduce(w, "ReduceSum", w.cast(x, result(node)[0]), _axes(None, x.rank), False, *result(node))


@register(aten.mean.dim)
def mean(w, node, x, axes, keepdim, *options):
    return reduce(w, "ReduceMean", w.cast(x, result(node)[0]), _axes(axes, x.rank), keepdim, *result(node))


@register(aten.mean.default)
def mean_all(w, node, x, *options):
    return mean(w, node, x, None, False)


@register(aten.amax.default)
def amax(w, node, x, axes, keepdim):
    return reduce(w, "ReduceMax", x, _axes(axes, x.rank), keepdim, *result(node))


@register(aten.amin.default)
def amin(w, node, x, axes, keepdim):
    return reduce(w, "ReduceMin", x, _axes(axes, x.rank), keepdim, *result(node))


@register(aten.max.default)
def max_all(w, node, x):
    return reduce(w, "ReduceMax", x, _axes(None, x.rank), False, *result(node))


@register(aten.min.default)
def min_all(w, node, x):
    return reduce(w, "ReduceMin", x, _axes(None, x.rank), False, *result(node))


@register(aten.prod.default, aten.prod.dim_int)
def prod(w, node, x, axis=None, keepdim=False, *options):
    x = w.cast(x, result(node)[0])
    if node.target == aten.prod.default and x.rank:  # without axes, as its gradient's rule for zeros is another one
        return w.make("ReduceProd", [x], *result(node), keepdims=0)
    return reduce(w, "ReduceProd", x, _axes(axis, x.rank), keepdim, *result(node))


def _all(w, x, axes, keepdim, shape):
    """The least of the truth values; of none it is true."""
    return w.cast(reduce(w, "ReduceMin", w.cast(x, torch.int32), axes, keepdim, torch.int32, shape), torch.bool)


@register(aten.all.default, aten.all.dim, aten.all.dims)
def all_true(w, node, x, axes=None, keepdim=False):
    dtype, shape = result(node)
    return w.cast(_all(w, w.cast(x, torch.bool), _axes(axes, x.rank), keepdim, shape), dtype)


@register(aten.any.default, aten.any.dim, aten.any.dims)
def any_true(w, node, x, axes=None, keepdim=False):
    dtype, shape = result(node)
    false = w.make("Not", [w.cast(x, torch.bool)], torch.bool, x.shape)
    none = _all(w, false, _axes(axes, x.rank), keepdim, shape)
    return w.cast(w.make("Not", [none], torch.bool, shape), dtype)


@register(aten.var.correction)
def var(w, node, x, axes, correction, keepdim):
    return _moments(w, node, x, axes, correction, keepdim, *result(node))[0]


@register(aten.var_mean.correction)
def var_mean(w, node, x, axes, correction, keepdim):
    return _moments(w, node, x, axes, correction, keepdim, *result(node, 0))


def _moments(w, node, x, axes, correction, keepdim, dtype, shape):
    axes = _axes(axes, x.rank)
    correction = 1 if correction is None else correction
    count = 1
    for axis in axes:
        if not isinstance(x.shape[axis], int):
            raise Refused("a variance over a size that is not a number")
        count *= x.shape[axis]
    if count <= correction:
        raise Refused("a variance of fewer elements than its correction takes away")
    kept = [1 if d in axes else s for d, s in enumerate(x.shape)]
    mean = reduce(w, "ReduceMean", x, axes, True, dtype, kept)
    away = w.make("Sub", [x, mean], dtype, x.shape)
    square = w.make("Mul", [away, away], dtype, x.shape)
    total = reduce(w, "ReduceSum", square, axes, keepdim, dtype, shape)
    variance = w.make("Mul", [total, w.constant(1 / (count - correction), dtype)], dtype, shape)
    return variance, w.reshape(mean, shape)


@register(aten.linalg_vector_norm.default)
def vector_norm(w, node, x, order, axes, keepdim, *options):
    dtype, shape = result(node)
    x, axes = w.cast(x, dtype), _axes(axes, x.rank)
    if x.rank == 0 and order != 0:
        return w.make("Abs", [x], dtype, shape)
    if order in (math.inf, -math.inf):
        return reduce(w, "ReduceMax" if order > 0 else "ReduceMin", w.make("Abs", [x], dtype, x.shape), axes, keepdim, dtype, shape)
    if order not in (1, 2):
        raise Refused(f"a norm of order {order}")
    return reduce(w, "ReduceL2" if order == 2 else "ReduceL1", x, axes, keepdim, dtype, shape)


@register(aten.logsumexp.default)
def logsumexp(w, node, x, axes, keepdim):
    return reduce(w, "ReduceLogSumExp", w.cast(x, result(node)[0]), _axes(axes, x.rank), keepdim, *result(node))


def _ordered(w, x):
    """Truth values as numbers that ArgMax and ArgMin take."""
    return w.cast(x, torch.uint8) if x.dtype == torch.bool else x


@register(aten.argmax.default, aten.argmin.default)
def argmax(w, node, x, axis, keepdim):
    op_type = "ArgMax" if node.target == aten.argmax.default else "ArgMin"
    if x.rank == 0:
        return w.full(0, torch.int64, ())
    if axis is None:
        x, axis = w.make("Reshape", [x, w.constant([-1])], x.dtype, (-1,)), 0
        if keepdim:
            raise Refused("keepdim without an axis")
    return w.make(op_type, [_ordered(w, x)], *result(node), axis=axis, keepdims=int(keepdim))


@register(aten.max.dim, aten.min.dim)
def max_dim(w, node, x, axis, keepdim):
    largest = node.target == aten.max.dim
    if x.rank == 0:
        raise Refused("an extreme of a scalar along an axis")
    dtype, shape = result(node, 0)
    values = reduce(w, "ReduceMax" if largest else "ReduceMin", x, [positive(axis, x.rank)], keepdim, dtype, shape)
    indices = w.make("ArgMax" if largest else "ArgMin", [_ordered(w, x)], torch.int64, shape, axis=axis,
                     keepdims=int(keepdim)) if is_read(node, 1) else None
    return values, indices


@register(aten.cumsum.default)
def cumsum(w, node, x, axis, *options):
    dtype, shape = result(node)
    if x.rank == 0:
        return w.cast(x, dtype)
    return w.make("CumSum", [w.cast(x, dtype), w.constant(axis)], dtype, shape)


@register(aten.logcumsumexp.default)
def logcumsumexp(w, node, x, axis):
    if not x.dtype.is_floating_point:
        raise Refused("a running sum of powers of other than floats")
    if x.rank == 0:
        return x
    return w.make("LogCumSumExp", [x], *result(node), domain=DOMAIN, axis=axis)


# --- softmax -------------------------------------------------------------------------------------------------

@register(aten._softmax.default, aten._log_softmax.default, aten._safe_softmax.default)
def softmax(w, node, x, axis, *options):
    if x.rank == 0:  # a row of one element
        return w.reshape(_softmax(w, node, w.reshape(x, [1]), 0, result(node)[0], (1,)), [])
    return _softmax(w, node, x, axis, *result(node))


def _softmax(w, node, x, axis, dtype, shape):
    op_type = "LogSoftmax" if node.target == aten._log_softmax.default else "Softmax"
    x = w.cast(x, dtype)
    if node.target != aten._safe_softmax.default:
        return w.make(op_type, [x], dtype, shape, axis=axis)
    # Zeros where all scores of a row are minus infinity, and on the way there no NaN that a gradient would meet.
    axis = positive(axis, x.rank)
    rows = tuple(1 if i == axis else d for i, d in enumerate(shape))
    largest = w.make("ReduceMax", [x, w.constant([axis])], dtype, rows, keepdims=1)
    nothing, zero = w.make("Equal", [largest, w.constant(-math.inf, dtype)], torch.bool, rows), w.constant(0, dtype)
    scores = w.make("Where", [nothing, zero, x], dtype, shape)
    return w.make("Where", [nothing, zero, w.make(op_type, [scores], dtype, shape, axis=axis)], dtype, shape)


@register(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def softmax_backward(w, node, dy, y, axis, input_dtype):
    op_type = "SoftmaxGrad" if node.target == aten._softmax_backward_data.default else "LogSoftmaxGrad"
    shape = dy.shape
    if dy.rank == 0:
        dy, y, axis = w.reshape(dy, [1]), w.reshape(y, [1]), 0
    made = w.make(op_type, [dy, y], dy.dtype, dy.shape, domain=DOMAIN, axis=axis)
    return w.cast(made if shape else w.reshape(made, []), result(node)[0])
