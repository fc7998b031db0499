# SPDX-License-Identifier: Apache-2.0
"""Indexing, gather and scatter: reads and writes at positions that tensors hold."""

import math

import torch

from caesura.lowering.onnx_builder import DOMAIN, Tensor, positive, same_dim, same_shape
from caesura.lowering.ops.elementwise import operand
from caesura.lowering.registry import Refused, aten, register
from caesura.rewrites.fx_meta import result


@register(aten.embedding.default)
def embedding(w, node, weight, indices, *options):
    return w.make("Gather", [weight, indices], *result(node), axis=0)


@register(aten.embedding_dense_backward.default)
def embedding_backward(w, node, dy, indices, count, padding, by_frequency):
    if by_frequency:
        raise Refused("gradients scaled by frequency")
    dtype, shape = result(node)
    if padding >= 0:
        is_padding = w.make("Equal", [indices, w.constant(padding, indices.dtype)], torch.bool, indices.shape)
        is_padding = w.make("Unsqueeze", [is_padding, w.constant([-1])], torch.bool, (*indices.shape, 1))
        dy = w.make("Where", [is_padding, w.constant(0, dy.dtype), dy], dy.dtype, dy.shape)
    return w.make("GatherGrad", [dy, indices, w.ints(shape)], dtype, shape, domain=DOMAIN, axis=0)


@register(aten.index_select.default)
def index_select(w, node, x, axis, indices):
    if x.rank == 0:
        raise Refused("places in a scalar")
    indices = w.reshape(indices, (1,)) if indices.rank == 0 else indices
    return w.make("Gather", [x, indices], *result(node), axis=axis)


@register(aten.topk.default)
def topk(w, node, x, k, axis, largest, ordered):
    if x.rank == 0:
        raise Refused("places in a scalar")
    outputs = w.op("TopK", [x, w.ints([k])], outputs=2, domain=DOMAIN, axis=axis, largest=int(largest), sorted=int(ordered))
    return tuple(Tensor(name, *result(node, i)) for i, name in enumerate(outputs))


@register(aten.sort.stable)
def sort_stable(w, node, x, stable, axis, descending):
    if x.dtype == torch.bool:
        raise Refused("an order of bool")
    if not stable and not x.dtype.is_floating_point:  # PyTorch has several ways
        raise Refused("an order in which equal elements may change places")
    if x.rank == 0:
        return x, w.full(0, torch.int64, ())
    axis = positive(axis, x.rank)
    how = dict(axis=axis, largest=int(descending), sorted=1) | ({} if stable else dict(domain=DOMAIN, as_sort=1))
    outputs = w.op("TopK", [x, w.ints([x.shape[axis]])], outputs=2, **how)
    return tuple(Tensor(name, *result(node, i)) for i, name in enumerate(outputs))


@register(aten.sort.default)
def sort(w, node, x, axis, descending):
    return sort_stable(w, node, x, False, axis, descending)


def _rows(w, x, axis, indices):
    """The indices of whole rows of `x`, in one dim, where `indices` are those expanded along all axes but the first; or None.
    Kernels of rows are many times faster than those of elements."""
    kind, rows, _ = w.origin.get(indices.name, (None, None, None))
    if kind != "Expand" or positive(axis, x.rank) != 0 or x.rank < 2 or not same_shape(indices.shape[1:], x.shape[1:]):
        return None
    if rows.rank != x.rank or not same_dim(rows.shape[0], indices.shape[0]) or any(not same_dim(d, 1) for d in rows.shape[1:]):
        return None
    return w.reshape(rows, rows.shape[:1])


@register(aten.gather.default)
def gather(w, node, x, axis, indices, sparse):
    if x.rank == 0 or indices.rank == 0:
        raise Refused("places in a scalar")
    if (rows := _rows(w, x, axis, indices)) is not None:
        return w.make("Gather", [x, rows], *result(node), axis=0)
    return w.make("GatherElements", [x, indices], *result(node), axis=axis)


def _scatter(w, x, axis, indices, source, reduction=None):
    if x.rank == 0 or indices.rank == 0:
        raise Refused("places in a scalar")
    if (rows := _rows(w, x, axis, indices)) is not None:
        places = w.reshape(w.cast(rows, torch.int64), (*rows.shape, 1))
        return w.make("ScatterND", [x, places, source], x.dtype, x.shape, reduction=reduction)
    return w.make("ScatterElements", [x, indices, source], x.dtype, x.shape, axis=axis, reduction=reduction)


def _corner(w, source, indices):
    """The part of `source` that has the shape of `indices`: PyTorch lets it be larger."""
    axes = [d for d in range(source.rank) if not same_dim(source.shape[d], indices.shape[d])]
    if not axes:
        return source
    ends = w.ints([indices.shape[d] for d in axes])
    return w.make("Slice", [source, w.constant([0] * len(axes)), ends, w.constant(axes)], source.dtype, indices.shape)


@register(aten.scatter.src)
def scatter(w, node, x, axis, indices, source):
    return _scatter(w, x, axis, indices, _corner(w, source, indices))


@register(aten.scatter.value)
def scatter_value(w, node, x, axis, indices, value):
    return _scatter(w, x, axis, indices, w.full(value, x.dtype, indices.shape))


@register(aten.scatter_add.default)
def scatter_add(w, node, x, axis, indices, source):
    return _scatter(w, x, axis, indices, _corner(w, source, indices), "add")


@register(aten.scatter_reduce.two)
def scatter_reduce(w, node, x, axis, indices, source, reduction, include_self):
    dtype, source = x.dtype, _corner(w, source, indices)
    if dtype == torch.bool or (reduction == "mean" and not dtype.is_floating_point):
        raise Refused(f"scatter by {reduction} of {dtype}")
    least, most = (-torch.inf, torch.inf) if dtype.is_floating_point else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    kind, nothing = {"sum": ("add", 0), "mean": ("add", 0), "prod": ("mul", 1), "amax": ("max", least),
                     "amin": ("min", most)}[reduction]
    if not include_self:
        x = _scatter(w, x, axis, indices, w.full(nothing, dtype, indices.shape))
    y = _scatter(w, x, axis, indices, source, kind)
    if reduction != "mean":
        return y
    counts = _scatter(w, w.full(int(include_self), dtype, x.shape), axis, indices, w.full(1, dtype, indices.shape), "add")
    counts = counts if include_self else w.make("Max", [counts, w.constant(1, dtype)], dtype, x.shape)
    return w.make("Div", [y, counts], dtype, x.shape)


@register(aten.nonzero.default)
def nonzero(w, node, x):
    if x.rank == 0:
        raise Refused("places in a scalar")
    dtype, shape = result(node)
    return w.make("Transpose", [w.op("NonZero", [x])], dtype, shape, perm=[1, 0])


@register(aten.bincount.default)
def bincount(w, node, x, weights, least):
    if weights is not None:
        raise Refused("weights")
    x = w.cast(x, torch.int64)
    most = w.op("ReduceMax", [w.op("Concat", [x, w.constant([-1])], axis=0)], keepdims=1)
    count = w.op("Max", [w.op("Add", [most, w.constant([1])]), w.ints([least])])
    is_negative = w.make("Less", [x, w.constant(0)], torch.bool, x.shape)
    places = w.make("Where", [is_negative, count, x], torch.int64, x.shape)  # past the end: an error, as in PyTorch
    nothing = w.op("Expand", [w.constant(0), count])
    return w.make("ScatterElements", [nothing, places, w.full(1, torch.int64, x.shape)], *result(node), axis=0, reduction="add")


# --- x[i, j] ---------------------------------------------------------------------------------------------------

def _without_mask(w, indices, count):
    """`indices`, with the `count` places that a mask, the only one of them, marks in the mask's place."""
    given = [d for d, i in enumerate(indices) if i is not None]
    masks = [d for d in given if indices[d].dtype in (torch.bool, torch.uint8)]
    if not masks:
        return indices
    if len(given) != 1:
        raise Refused("places given by a mask and by others")
    mask = indices[masks[0]]
    if mask.rank == 0:
        raise Refused("places in a scalar")
    rows = w.op("NonZero", [mask])
    rows = [rows] if mask.rank == 1 else w.op("Split", [rows], outputs=mask.rank, axis=0, num_outputs=mask.rank)
    places = [w.make("Squeeze", [row, w.constant([0])], torch.int64, (count,)) for row in rows]
    return [*indices[:masks[0]], *places, *indices[masks[0] + 1:]]


def _places(w, node, x, indices):
    """The axes that tensors index, and their indices as one tensor [broadcast shape..., axes]."""
    axes = [d for d, i in enumerate(indices) if i is not None]
    tensors = [w.cast(indices[d], torch.int64) for d in axes]
    shape = broadcast_shape(tensors)
    parts = []
    for tensor in tensors:
        if not same_shape(tensor.shape, shape):
            tensor = w.make("Expand", [tensor, w.ints(shape)], torch.int64, shape)
        parts.append(w.make("Unsqueeze", [tensor, w.constant([len(shape)])], torch.int64, (*shape, 1)))
    whole = parts[0] if len(parts) == 1 else w.make("Concat", parts, torch.int64, (*shape, len(axes)), axis=len(shape))
    return axes, whole, shape


def broadcast_shape(tensors):
    rank = max(t.rank for t in tensors)
    shape = [1] * rank
    for tensor in tensors:
        for d, size in enumerate(tensor.shape):
            place = rank - tensor.rank + d
            if not (isinstance(size, int) and size == 1):
                shape[place] = size
    return tuple(shape)


def _at_front(axes, rank):
    return list(axes) + [d for d in range(rank) if d not in axes]


def _result_order(axes, rank, index_rank):
    """Where the axes of [index axes..., other axes...] go: to the first indexed axis if these are neighbours."""
    neighbours = axes == list(range(axes[0], axes[0] + len(axes)))
    before = axes[0] if neighbours else 0
    rest = rank - len(axes)
    return list(range(index_rank, index_rank + before)) + list(range(index_rank)) + list(
        range(index_rank + before, index_rank + rest))


@register(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(w, node, x, indices):
    dtype, shape = result(node)
    indices = _without_mask(w, indices, shape[next(d for d, i in enumerate(indices) if i is not None)] if shape else 1)
    axes, places, index_shape = _places(w, node, x, indices)
    if len(axes) == 1:
        return w.make("Gather", [x, indices[axes[0]]], dtype, shape, axis=axes[0])
    order = _at_front(axes, x.rank)
    front = w.transpose(x, order)
    picked = w.make("GatherND", [front, places], dtype, (*index_shape, *front.shape[len(axes):]))
    return Tensor(w.transpose(picked, _result_order(axes, x.rank, len(index_shape))).name, dtype, shape)


def _broadcast(w, tensor, shape):
    return tensor if same_shape(tensor.shape, shape) else w.make("Expand", [tensor, w.ints(shape)], tensor.dtype, shape)


@register(aten.masked_select.default)
def masked_select(w, node, x, mask):
    shape = broadcast_shape([x, mask])
    return index(w, node, _broadcast(w, x, shape), [_broadcast(w, mask, shape)])


@register(aten.masked_scatter.default)
def masked_scatter(w, node, x, mask, source):
    """The n-th marked place gets the n-th element of the source."""
    dtype, shape = result(node)
    x, mask = _broadcast(w, x, shape), _broadcast(w, mask, shape)
    flat, given = (math.prod(shape),), math.prod(source.shape)
    # One more element, for places after the last marked one.
    elements = w.make("Concat", [w.reshape(source, (given,)), w.full(0, dtype, (1,))], dtype, (given + 1,), axis=0)
    moved = w.reshape(w.make("Gather", [elements, _marked_before(w, mask)], dtype, flat, axis=0), shape)
    return w.make("Where", [mask, moved, x], dtype, shape)


def _marked_before(w, mask):
    """The number of marked places before each one, in one dim."""
    flat = (math.prod(mask.shape),)
    marked = w.cast(w.reshape(mask, flat), torch.int64)
    return w.make("Sub", [w.make("CumSum", [marked, w.constant(0)], torch.int64, flat), marked], torch.int64, flat)


@register(aten.masked_scatter_backward.default)
def masked_scatter_backward(w, node, grad, mask, sizes):
    """The n-th element of the source gets the gradient of the n-th marked place, those that no place took get zero."""
    dtype, shape = result(node)
    flat, count = (math.prod(grad.shape),), math.prod(shape)
    mask = _broadcast(w, mask, grad.shape)
    # A place that is not marked goes to one more element, which is cut off.
    places = w.make("Where", [w.reshape(mask, flat), _marked_before(w, mask), w.full(count, torch.int64, (1,))], torch.int64, flat)
    sums = w.make("ScatterElements", [w.full(0, dtype, (count + 1,)), places, w.reshape(grad, flat)], dtype, (count + 1,), axis=0)
    return w.reshape(w.make("Slice", [sums, w.ints([0]), w.ints([count])], dtype, (count,)), shape)


@register(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(w, node, x, indices, values, accumulate):
    dtype, shape = result(node)
    masks = [i for i in indices if i is not None and i.dtype == torch.bool]
    if masks and len(indices) == 1 and values.rank == 0 and not accumulate:
        mask = w.reshape(masks[0], [*masks[0].shape, *[1] * (x.rank - masks[0].rank)])
        return w.make("Where", [mask, operand(w, values, dtype), x], dtype, shape)
    first = next(d for d, i in enumerate(indices) if i is not None)
    if masks and (values.rank != x.rank - masks[0].rank + 1 or same_dim(values.shape[first], 1)):
        raise Refused("fewer values than places that a mask gives")
    indices = _without_mask(w, indices, values.shape[first] if masks else 0)
    axes, places, index_shape = _places(w, node, x, indices)
    order = _at_front(axes, x.rank)
    front = w.transpose(x, order)
    given = _result_order(axes, x.rank, len(index_shape))  # the order in which the values' axes come
    sizes = [*index_shape, *front.shape[len(axes):]]
    values = w.make("Expand", [values, w.ints([sizes[g] for g in given])], dtype, [sizes[g] for g in given])
    values = w.transpose(values, [given.index(d) for d in range(len(given))])
    written = w.make("ScatterND", [front, places, values], dtype, front.shape, reduction="add" if accumulate else None)
    return w.transpose(written, [order.index(d) for d in range(x.rank)])


@register(aten._jagged_to_padded_dense_forward.default)
def jagged_to_padded(w, node, rows, offsets, lengths, padding):
    """Row l of part b is row offsets[b] + l, up to offsets[b + 1]; the rest is padding."""
    if len(offsets) != 1:
        raise Refused("more than one ragged dim")
    (dtype, shape), offsets = result(node), w.cast(offsets[0], torch.int64)
    end = offsets.shape[0]
    first, last = (w.make("Slice", [offsets, w.ints([a]), w.ints([b]), w.constant([0])], torch.int64, shape[:1])
                   for a, b in ((0, -1), (1, end)))
    first, last = (w.make("Unsqueeze", [t, w.constant([1])], torch.int64, (shape[0], 1)) for t in (first, last))
    steps = w.make("Range", [w.scalar(v) for v in (0, lengths[0], 1)], torch.int64, shape[1:2])
    places = w.make("Add", [first, steps], torch.int64, shape[:2])
    inside = w.make("Less", [places, last], torch.bool, shape[:2])
    places = w.make("Where", [inside, places, w.constant(0)], torch.int64, shape[:2])
    inside = w.make("Unsqueeze", [inside, w.constant(list(range(2, len(shape))))], torch.bool, (*shape[:2], *[1] * (len(shape) - 2)))
    padded = w.make("Gather", [rows, places], dtype, shape, axis=0)
    return w.make("Where", [inside, padded, w.constant(padding, dtype)], dtype, shape)
