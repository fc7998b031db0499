# SPDX-License-Identifier: Apache-2.0
"""Shape ops: views, transposes, slices, concatenation, padding, and new tensors."""

import torch

from caesura.lowering.onnx_builder import DOMAIN, Scalar, Tensor, positive, same_dim, same_shape
from caesura.lowering.ops.elementwise import operand
from caesura.lowering.registry import Refused, aten, register
from caesura.rewrites.fx_meta import is_read, is_static, result

_END = 2**63 - 1  # "to the end", in PyTorch's slices

# --- views ---------------------------------------------------------------------------------------------------

@register(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def view(w, node, x, size):
    shape = list(result(node)[1])
    # The call's own sizes say how to compute what is no number; -1 is what is left.
    sizes = [size[i] if not isinstance(s, int) and not (isinstance(size[i], int) and size[i] < 0) else s
             for i, s in enumerate(shape)]
    unknown = [i for i, s in enumerate(sizes) if not isinstance(s, (int, Scalar)) and not _is_known(w, s)]
    if len(unknown) == 1 and all(s != 0 for s in sizes if isinstance(s, int)):
        sizes = [-1 if i in unknown else s for i, s in enumerate(sizes)]
        made = w.op("Reshape", [x, w.ints(sizes)], allowzero=0)
        return Tensor(made, x.dtype, tuple(shape))
    made = w.reshape(x, sizes)
    return Tensor(made.name, x.dtype, tuple(shape))


def _is_known(w, dim) -> bool:
    try:
        w.scalar(dim)
        return True
    except Refused:
        return False


@register(aten.as_strided.default)
def as_strided(w, node, x, size, stride, offset=None):
    _require_reshape(node.args[0].meta["val"], size, stride, offset)
    return w.reshape(x, list(size))


@register(aten.as_strided_scatter.default)
def as_strided_scatter(w, node, x, source, size, stride, offset=None):
    _require_reshape(node.args[0].meta["val"], size, stride, offset)
    return w.reshape(w.cast(source, x.dtype), list(x.shape))


def _require_reshape(x, size, stride, offset):
    """Refused unless the strides tell of all elements of a dense tensor, in order."""
    if not is_static(x.shape) or not is_static(size) or not is_static(stride):
        raise Refused("strides over sizes that are no numbers")
    steps = 1
    for extent, step in zip(reversed(size), reversed(stride)):
        if extent != 1 and step != steps:
            raise Refused("strides that are no reshape's")
        steps *= extent
    if not x.is_contiguous() or steps != x.numel() or offset not in (None, 0) or x.storage_offset() != 0:
        raise Refused("strides that are no reshape's")


@register(aten.view.dtype)
def view_dtype(w, node, x, dtype):
    if dtype != x.dtype:
        raise Refused("bits seen as another dtype")
    return x


@register(aten.t.default)
def t(w, node, x):
    return w.transpose(x, range(x.rank)[::-1])


@register(aten.transpose.int)
def transpose(w, node, x, a, b):
    if x.rank == 0:
        return x
    order = list(range(x.rank))
    order[a], order[b] = order[b], order[a]
    return w.transpose(x, order)


@register(aten.permute.default)
def permute(w, node, x, order):
    return w.transpose(x, [positive(p, x.rank) for p in order])


@register(aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def resize_ones(w, node, x, *axes):
    return w.reshape(x, result(node)[1])


@register(aten.expand.default)
def expand(w, node, x, size, implicit):
    dtype, shape = result(node)
    if len(shape) == x.rank and all(same_dim(a, b) for a, b in zip(shape, x.shape)):
        return x
    made = w.make("Expand", [x, w.ints([s if isinstance(s, int) else g if isinstance(g, Scalar) else s
                                        for s, g in zip(shape, size)])], dtype, shape)
    w.origin[made.name] = ("Expand", x, None)
    return made


# --- parts ---------------------------------------------------------------------------------------------------

@register(aten.slice.Tensor)
def slice_(w, node, x, axis, start, end, step):
    start = 0 if start is None else start
    end = _END if end is None else end
    if step == 1 and start == 0 and isinstance(end, int) and (end == _END or x.shape[axis] == end):
        return x
    return w.make("Slice", [x, w.ints([start]), w.ints([end]), w.constant([axis]), w.ints([step])], *result(node))


@register(aten.select.int)
def select(w, node, x, axis, index):
    return w.make("Gather", [x, w.scalar(index)], *result(node), axis=axis)


@register(aten.split.Tensor, aten.split_with_sizes.default)
def split(w, node, x, sizes, axis=0):
    results = [result(node, i) for i in range(len(node.meta["val"]))]
    parts = [shape[axis] for _, shape in results]
    outputs = w.op("Split", [x, w.ints(parts)], outputs=len(results), axis=axis)
    outputs = [outputs] if len(results) == 1 else outputs
    return tuple(Tensor(name, x.dtype, shape) for name, (_, shape) in zip(outputs, results))


@register(aten.unbind.int)
def unbind(w, node, x, axis):
    count = len(node.meta["val"])
    return tuple(w.make("Gather", [x, w.scalar(i)], *result(node, i), axis=axis) if is_read(node, i) else None
                 for i in range(count))


@register(aten.slice_backward.default)
def slice_backward(w, node, dy, sizes, axis, start, end, step):
    dtype, shape = result(node)
    end = _END if end is None else end
    inputs = [dy, w.ints(sizes), w.ints([start]), w.ints([end]), w.constant([axis]), w.ints([step])]
    return w.make("SliceGrad", inputs, dtype, shape, domain="ai.caesura")


@register(aten.select_backward.default)
def select_backward(w, node, dy, sizes, axis, index):
    dtype, shape = result(node)
    axis = positive(axis, len(shape))
    dy = w.reshape(dy, [*dy.shape[:axis], 1, *dy.shape[axis:]])
    if index == -1:
        end = _END
    elif isinstance(index, Scalar):
        end = Scalar(w.op("Add", [w.scalar(index), w.constant(1)]), index.symbol + 1)
    else:
        end = index + 1
    inputs = [dy, w.ints(sizes), w.ints([index]), w.ints([end]), w.constant([axis])]
    return w.make("SliceGrad", inputs, dtype, shape, domain="ai.caesura")


def _scatter_range(w, x, source, axis, start, end, step):
    """x with `source` in a range of `axis`: the part before it, the source, the part after it; or place by place."""
    extent = x.shape[axis]
    is_known = isinstance(extent, int)
    if not all(isinstance(v, int) for v in (start, end, step)) or (not is_known and not (0 <= start < end and step == 1)):
        raise Refused("a range whose ends are not numbers")
    if is_known:
        start = min(max(start + extent if start < 0 else start, 0), extent)
        end = min(max(end + extent if end < 0 else end, start), extent)
    if start == end:
        return x
    if step != 1:
        order = [axis] + [d for d in range(x.rank) if d != axis]
        front, rows = w.transpose(x, order), w.transpose(source, order)
        places = w.constant(torch.arange(start, end, step).unsqueeze(1))
        written = w.make("ScatterND", [front, places, rows], x.dtype, front.shape)
        return w.transpose(written, [order.index(d) for d in range(x.rank)])
    def part(a, b):
        return w.op("Slice", [x, w.constant([a]), w.constant([b]), w.constant([axis])])
    last = extent if is_known else _END
    parts = ([part(0, start)] if start > 0 else []) + [source] + ([part(end, last)] if end < last else [])
    return source if len(parts) == 1 else w.make("Concat", parts, x.dtype, x.shape, axis=axis)


@register(aten.slice_scatter.default)
def slice_scatter(w, node, x, source, axis, start, end, step):
    axis = positive(axis, x.rank)
    return _scatter_range(w, x, w.cast(source, x.dtype), axis, 0 if start is None else start,
                          _END if end is None else end, step)


@register(aten.select_scatter.default)
def select_scatter(w, node, x, source, axis, index):
    axis = positive(axis, x.rank)
    if not isinstance(index, int) or not isinstance(x.shape[axis], int):
        raise Refused("an index or a size that is not a number")
    index = index + x.shape[axis] if index < 0 else index
    source = w.reshape(w.cast(source, x.dtype), [*source.shape[:axis], 1, *source.shape[axis:]])
    return _scatter_range(w, x, source, axis, index, index + 1, 1)


def _matrices(w, x, offset, first, second):
    """(x with the two axes last and made one, the places of their diagonal in that, the order of axes, the sizes before)."""
    first, second = positive(first, x.rank), positive(second, x.rank)
    if not is_static(x.shape):
        raise Refused("the diagonal of sizes that are not numbers")
    order = [d for d in range(x.rank) if d not in (first, second)] + [first, second]
    x = w.transpose(x, order)
    rows, columns = x.shape[-2:]
    count = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    places = torch.arange(count) * (columns + 1) + (offset if offset >= 0 else -offset * columns)
    return w.reshape(x, [*x.shape[:-2], rows * columns]), w.constant(places), order, x.shape


@register(aten.diagonal.default)
def diagonal(w, node, x, offset, first, second):
    flat, places, _, _ = _matrices(w, x, offset, first, second)
    return w.make("Gather", [flat, places], *result(node), axis=flat.rank - 1)


@register(aten.diagonal_scatter.default)
def diagonal_scatter(w, node, x, source, offset, first, second):
    flat, places, order, sizes = _matrices(w, x, offset, first, second)
    places = w.make("Expand", [places, w.constant(list(source.shape))], torch.int64, source.shape)
    inputs = [flat, places, w.cast(source, x.dtype)]
    written = w.reshape(w.make("ScatterElements", inputs, x.dtype, flat.shape, axis=flat.rank - 1), sizes)
    return w.transpose(written, [order.index(d) for d in range(x.rank)])


def _windows(extent, size, step):
    if not all(isinstance(v, int) for v in (extent, size, step)):
        raise Refused("windows over sizes that are not numbers")
    return torch.arange(0, extent - size + 1, step).unsqueeze(1) + torch.arange(size)


@register(aten.unfold.default)
def unfold(w, node, x, axis, size, step):
    dtype, shape = result(node)
    if x.rank == 0:
        return w.reshape(x, shape)
    axis = positive(axis, x.rank)
    places = _windows(x.shape[axis], size, step)
    cut = [*x.shape[:axis], *places.shape, *x.shape[axis + 1:]]
    if size == step and places.numel() == x.shape[axis]:
        rows = w.reshape(x, cut)
    else:
        rows = w.make("Gather", [x, w.constant(places)], dtype, cut, axis=axis)
    return w.transpose(rows, [d for d in range(x.rank + 1) if d != axis + 1] + [axis + 1])


@register(aten.unfold_backward.default)
def unfold_backward(w, node, dy, sizes, axis, size, step):
    dtype, shape = result(node)
    if not shape:
        return w.reshape(dy, shape)
    axis = positive(axis, len(shape))
    places = _windows(shape[axis], size, step)
    given = [*shape[:axis], len(places), *shape[axis + 1:], size]
    if dy.rank != len(given):
        raise Refused("windows of another rank")
    if not same_shape(dy.shape, given):  # istft divides by windows that are the same for the whole batch
        dy = w.make("Expand", [dy, w.ints(given)], dtype, given)
    rows = w.transpose(dy, [*range(axis + 1), len(shape), *range(axis + 1, len(shape))])
    if size == step and places.numel() == shape[axis]:
        return w.reshape(rows, shape)
    return w.make("GatherGrad", [rows, w.constant(places), w.ints(shape)], dtype, shape, domain=DOMAIN, axis=axis)


@register(aten.replication_pad1d_backward.default, aten.replication_pad2d_backward.default,
        aten.replication_pad3d_backward.default)
def replication_pad_backward(w, node, dy, x, pads):
    if not is_static((*x.shape, *pads)):
        raise Refused("padding of sizes that are not numbers")
    for i in range(len(pads) // 2):
        axis = x.rank - 1 - i
        if pads[2 * i] or pads[2 * i + 1]:
            places = torch.arange(-pads[2 * i], x.shape[axis] + pads[2 * i + 1]).clamp(0, x.shape[axis] - 1)
            shape = [*dy.shape[:axis], x.shape[axis], *dy.shape[axis + 1:]]
            dy = w.make("GatherGrad", [dy, w.constant(places), w.ints(shape)], dy.dtype, shape, domain=DOMAIN, axis=axis)
    return dy


@register(aten.flip.default)
def flip(w, node, x, axes):
    axes = [positive(a, x.rank) for a in axes]
    count = len(axes)
    inputs = [x, w.constant([-1] * count), w.constant([-(2**63) + 1] * count), w.constant(axes), w.constant([-1] * count)]
    return w.make("Slice", inputs, *result(node)) if count else x


# --- together ------------------------------------------------------------------------------------------------

@register(aten.cat.default)
def cat(w, node, tensors, axis):
    dtype, shape = result(node)
    axis = positive(axis, len(shape))
    # PyTorch passes over tensors of shape [0], whatever the rank of the others.
    tensors = [w.cast(t, dtype) for t in tensors if not (t.rank == 1 and len(shape) != 1 and same_dim(t.shape[0], 0))]
    return tensors[0] if len(tensors) == 1 else w.make("Concat", tensors, dtype, shape, axis=axis)


@register(aten.stack.default)
def stack(w, node, tensors, axis):
    dtype, shape = result(node)
    axis = positive(axis, len(shape))
    parts = [w.reshape(w.cast(t, dtype), [*t.shape[:axis], 1, *t.shape[axis:]]) for t in tensors]
    return w.make("Concat", parts, dtype, shape, axis=axis)


@register(aten.repeat.default)
def repeat(w, node, x, repeats):
    dtype, shape = result(node)
    x = w.reshape(x, [1] * (len(repeats) - x.rank) + list(x.shape))
    return w.make("Tile", [x, w.ints(repeats)], dtype, shape)


@register(aten.constant_pad_nd.default)
def constant_pad_nd(w, node, x, pads, value):
    axes = [x.rank - 1 - i for i in range(len(pads) // 2)]
    ordered = [pads[2 * i] for i in range(len(axes))] + [pads[2 * i + 1] for i in range(len(axes))]
    return w.make("Pad", [x, w.ints(ordered), w.constant(value, x.dtype), w.constant(axes)], *result(node))


@register(aten.tril.default, aten.triu.default)
def triangle(w, node, x, k):
    return w.make("Trilu", [x, w.scalar(k)], *result(node), upper=int(node.target == aten.triu.default))


# --- from nothing --------------------------------------------------------------------------------------------

@register(aten.full.default, aten.full_like.default)
def full(w, node, like, value, *options):
    dtype, shape = result(node)
    return w.full(value, dtype, _sizes(like, shape))


def _sizes(like, shape):
    """The sizes that a call names, where it names any, for those that are no numbers."""
    named = like if isinstance(like, list) else shape
    return [s if isinstance(s, int) else n for s, n in zip(shape, named)]


@register(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten._efficientzerotensor.default)
def zeros(w, node, like, *options):
    dtype, shape = result(node)
    sizes = options[0] if options and isinstance(options[0], list) else like
    return w.full(0, dtype, _sizes(sizes, shape))


@register(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(w, node, like, *options):
    dtype, shape = result(node)
    sizes = options[0] if options and isinstance(options[0], list) else like
    return w.full(1, dtype, _sizes(sizes, shape))


@register(aten.new_full.default)
def new_full(w, node, like, size, value, *options):
    dtype, shape = result(node)
    return w.full(value, dtype, _sizes(size, shape))


# These tensors are written before they are read; zeros make runs repeatable.
@register(aten.empty.memory_format, aten.empty_permuted.default, aten.empty_like.default, aten.new_empty.default,
          aten.new_empty_strided.default)
def empty(w, node, like, *options):
    return zeros(w, node, like, *options)


@register(aten.scalar_tensor.default)
def scalar_tensor(w, node, value, *options):
    return operand(w, value, result(node)[0])


@register(aten.arange.start_step)
def arange(w, node, start, end, step, *options):
    dtype, shape = result(node)
    ends = [v for v in (start, end, step)]
    if any(isinstance(v, float) for v in ends) or dtype.is_floating_point:
        if any(not isinstance(v, (int, float)) for v in ends):
            raise Refused("ends that are no numbers, of floats")
        return w.constant(torch.arange(start, end, step, dtype=dtype))
    return w.cast(w.make("Range", [w.scalar(v) for v in ends], torch.int64, shape), dtype)


@register(aten.arange.start)
def arange_start(w, node, start, end, *options):
    return arange(w, node, start, end, 1)


@register(aten.arange.default)
def arange_end(w, node, end, *options):
    return arange(w, node, 0, end, 1)
