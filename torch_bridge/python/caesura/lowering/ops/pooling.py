# SPDX-License-Identifier: Apache-2.0
"""Pooling, forward and backward."""

import functools
import math

import torch

from caesura.lowering.onnx_builder import DOMAIN, Tensor
from caesura.lowering.registry import Refused, aten, register
from caesura.rewrites.fx_meta import is_read, is_static, result


def _window(axes, kernel, stride, padding, ceil_mode, dilation=None):
    spread = lambda values: list(values) * axes if len(values) == 1 else list(values)  # noqa: E731
    kernel = spread(kernel)
    made = {"kernel_shape": kernel, "strides": spread(stride) if stride else kernel, "pads": spread(padding) * 2,
            "ceil_mode": int(ceil_mode)}
    if dilation is not None:
        made["dilations"] = spread(dilation)
    return made


def _batched(w, x, rank):
    """A single image as a batch of one."""
    return x if x.rank == rank else w.reshape(x, (1, *x.shape))


def _pools(*targets):
    """Enters a function for targets that pool 2 axes, 3 axes: it gets their number in front of the call's arguments."""
    def enter(function):
        for axes, target in enumerate(targets, 2):
            register(target)(functools.partial(_with_axes, function, axes))
        return function
    return enter


def _with_axes(function, axes, w, node, *arguments):
    return function(w, node, axes, *arguments)


@_pools(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def max_pool(w, node, axes, x, kernel, stride, padding, dilation, ceil_mode):
    return _max_pool(w, node, axes, x, _window(axes, kernel, stride, padding, ceil_mode, dilation))


def _max_pool(w, node, axes, x, window):
    (dtype, shape), (_, places) = result(node, 0), result(node, 1)
    batch = _batched(w, x, axes + 2)
    if not is_read(node, 1):
        y = w.op("MaxPool", [batch], **window)
        return w.reshape(Tensor(y, dtype, (*batch.shape[:2], *shape[-axes:])), shape), None
    if not is_static(x.shape[-axes:]):
        raise Refused("places in planes of sizes that are not numbers")
    y, indices = w.op("MaxPool", [batch], outputs=2, **window)
    # ONNX counts places over the whole tensor, PyTorch over the plane.
    plane = w.constant(math.prod(x.shape[-axes:]))
    indices = w.make("Mod", [indices, plane], torch.int64, (*batch.shape[:2], *shape[-axes:]))
    return w.reshape(Tensor(y, dtype, indices.shape), shape), w.reshape(indices, places)


@_pools(aten.max_pool2d_with_indices_backward.default, aten.max_pool3d_with_indices_backward.default)
def max_pool_backward(w, node, axes, dy, x, kernel, stride, padding, dilation, ceil_mode, indices):
    dtype, shape = result(node)
    window = _window(axes, kernel, stride, padding, ceil_mode, dilation)
    batch = _batched(w, x, axes + 2)
    dx = w.make("MaxPoolGrad", [_batched(w, dy, axes + 2), batch], dtype, batch.shape, domain=DOMAIN, **window)
    return w.reshape(dx, shape)


def _check_average(x, axes, kernel, padding):
    window = _window(axes, kernel, None, padding, False)
    sizes = zip(x.shape[-axes:], window["kernel_shape"], window["pads"])
    if any(isinstance(size, int) and size + 2 * pad < extent for size, extent, pad in sizes):
        raise Refused("a window larger than the padded input")


def _products(vectors):
    """The product of each combination of the vectors' elements."""
    return torch.stack(torch.meshgrid(*(v.double() for v in vectors), indexing="ij")).prod(0)


def _divided_otherwise(w, y, axes, sizes, window, divisor):
    """Rescales averages (with padding) so that each window's sum is divided by `divisor`. sizes: the pooled ones."""
    if divisor is None:
        return y
    if not is_static((*y.shape[-axes:], *sizes)):
        raise Refused("a divisor of its own over sizes that are not numbers")
    spans, parts = [], (window[name] for name in ("kernel_shape", "strides", "pads"))
    for count, size, extent, stride, pad in zip(y.shape[-axes:], sizes, *parts):
        starts = torch.arange(count) * stride - pad
        spans.append((starts + extent).clamp(max=size + pad) - starts)  # the last one may end outside, by ceil_mode
    return w.make("Mul", [y, w.constant((_products(spans) / divisor).to(y.dtype))], y.dtype, y.shape)


@_pools(aten.avg_pool2d.default, aten.avg_pool3d.default)
def average_pool(w, node, axes, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor):
    _check_average(x, axes, kernel, padding)
    dtype, shape = result(node)
    batch, window = _batched(w, x, axes + 2), _window(axes, kernel, stride, padding, ceil_mode)
    y = w.make("AveragePool", [batch], dtype, (*batch.shape[:2], *shape[-axes:]), **window,
               count_include_pad=int(count_include_pad or divisor is not None))
    return w.reshape(_divided_otherwise(w, y, axes, x.shape[-axes:], window, divisor), shape)


@_pools(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def average_pool_backward(w, node, axes, dy, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor):
    _check_average(x, axes, kernel, padding)
    dtype, shape = result(node)
    batch, window = _batched(w, x, axes + 2), _window(axes, kernel, stride, padding, ceil_mode)
    dy = _divided_otherwise(w, _batched(w, dy, axes + 2), axes, x.shape[-axes:], window, divisor)
    dx = w.make("AveragePoolGrad", [dy, batch], dtype, batch.shape, domain=DOMAIN, **window,
                count_include_pad=int(count_include_pad or divisor is not None))
    return w.reshape(dx, shape)


def _adaptive(sizes, counts):
    """The window of each result along each axis, as a range of places."""
    if not is_static((*sizes, *counts)) or 0 in (*sizes, *counts):
        raise Refused("windows over sizes that are not numbers, or nothing")
    return [[range(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
            for size, count in zip(sizes, counts)]


def _even(sizes, counts):
    kernel = [size // count for size, count in zip(sizes, counts)]
    return None if any(size % count for size, count in zip(sizes, counts)) else {"kernel_shape": kernel, "strides": kernel}


def _sums(w, x, axis, places):
    """x with, along the axis, the sum of the elements at each item of `places`; what is not among them has no say, be it
    infinite."""
    longest, size = max(map(len, places)), x.shape[axis]
    if any(len(p) < longest for p in places):
        shape = [*x.shape[:axis], size + 1, *x.shape[axis + 1:]]
        x = w.make("Pad", [x, w.ints([0, 1]), w.constant(0, x.dtype), w.constant([axis])], x.dtype, shape)
    rows = torch.tensor([[*p, *[size] * (longest - len(p))] for p in places]).t()
    shape = [*x.shape[:axis], *rows.shape, *x.shape[axis + 1:]]
    y = w.make("Gather", [x, w.constant(rows)], x.dtype, shape, axis=axis)
    return w.make("ReduceSum", [y, w.constant([axis])], x.dtype, [*shape[:axis], *shape[axis + 1:]], keepdims=0)


def _wide(w, x):
    return w.cast(x, torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def _elements_of(windows, dtype):
    return _products([torch.tensor([len(p) for p in places]) for places in windows]).to(dtype)


@_pools(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_average_pool(w, node, axes, x, counts):
    dtype, shape = result(node)
    windows, window = _adaptive(x.shape[-axes:], shape[-axes:]), _even(x.shape[-axes:], shape[-axes:])
    if window:
        batch = _batched(w, x, axes + 2)
        return w.reshape(w.make("AveragePool", [batch], dtype, (*batch.shape[:2], *shape[-axes:]), **window), shape)
    y = _wide(w, x)
    for axis, places in enumerate(windows, x.rank - axes):
        y = _sums(w, y, axis, places)
    return w.cast(w.make("Div", [y, w.constant(_elements_of(windows, y.dtype))], y.dtype, shape), dtype)


@_pools(aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default)
def adaptive_average_pool_backward(w, node, axes, dy, x):
    dtype, shape = result(node)
    windows, window = _adaptive(shape[-axes:], dy.shape[-axes:]), _even(shape[-axes:], dy.shape[-axes:])
    if window:
        batch = _batched(w, x, axes + 2)
        dx = w.make("AveragePoolGrad", [_batched(w, dy, axes + 2), batch], dtype, batch.shape, domain=DOMAIN, **window)
        return w.reshape(dx, shape)
    dy = _wide(w, dy)
    dx = w.make("Div", [dy, w.constant(_elements_of(windows, dy.dtype))], dy.dtype, dy.shape)
    # From the last axis on, which goes element by element, while there is little of it.
    for axis, places in reversed(list(enumerate(windows, x.rank - axes))):
        dx = _sums(w, dx, axis, [[i for i, p in enumerate(places) if j in p] for j in range(shape[axis])])
    return w.cast(dx, dtype)


# --- the largest of places --------------------------------------------------------------------------------------

def _largest(w, node, axes, x, places):
    """(the largest element of each window, where in the plane it is). places: those of a window along the last axis; the
    axis before is the windows', others in front are x's."""
    (dtype, shape), rows = result(node, 0), x.shape[:x.rank - axes]
    flat = w.reshape(x, (*rows, math.prod(x.shape[-axes:])))
    count, size = places.shape[-2:]
    picked = (*rows, count, size)
    if places.rank == 2:
        windows = w.make("Gather", [flat, places], dtype, picked, axis=len(rows))
    else:
        windows = w.make("GatherElements", [flat, w.reshape(places, (*rows, count * size))], dtype, (*rows, count * size), axis=-1)
        windows = w.reshape(windows, picked)
    best = w.make("ArgMax", [windows], torch.int64, (*rows, count, 1), axis=-1, keepdims=1)
    if places.rank == 2:
        starts = w.constant((torch.arange(count) * size)[:, None])
        best = w.make("Add", [best, starts], torch.int64, best.shape)
        at = w.make("Gather", [w.reshape(places, (count * size,)), best], torch.int64, best.shape, axis=0)
    else:
        at = w.make("GatherElements", [places, best], torch.int64, best.shape, axis=-1)
    at = w.reshape(at, (*rows, count))
    return w.reshape(w.make("GatherElements", [flat, at], dtype, at.shape, axis=-1), shape), w.reshape(at, shape)


@_pools(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(w, node, axes, x, counts):
    sizes, shape = x.shape[-axes:], result(node, 0)[1]
    windows, window = _adaptive(sizes, shape[-axes:]), _even(sizes, shape[-axes:])
    if window:
        return _max_pool(w, node, axes, x, window)
    if not is_static(x.shape):
        raise Refused("windows of several sizes in a number of planes that is none")
    # Windows that are shorter than others name their last place again.
    lines = [torch.tensor([[*p, *[p[-1]] * (max(map(len, places)) - len(p))] for p in places]) for places in windows]
    places = torch.zeros([1] * 2 * axes, dtype=torch.int64)
    for d, line in enumerate(lines):
        shape = [1] * 2 * axes
        shape[d], shape[axes + d] = line.shape
        places = places * sizes[d] + line.reshape(shape)
    return _largest(w, node, axes, x, w.constant(places.reshape(math.prod(places.shape[:axes]), -1)))


@_pools(aten.fractional_max_pool2d.default, aten.fractional_max_pool3d.default)
def fractional_max_pool(w, node, axes, x, kernel, counts, samples):
    """The windows begin where `samples`, numbers in [0, 1) of each plane, say."""
    (dtype, shape), rows = result(node, 0), x.shape[:x.rank - axes]
    if not is_static(x.shape):
        raise Refused("windows in sizes that are not numbers")
    kernel = list(kernel) * axes if len(kernel) == 1 else list(kernel)
    line = (*rows, 1)
    if len(rows) == 1:  # of a single image those of the first
        samples = w.make("Gather", [samples, w.constant(0)], dtype, samples.shape[1:], axis=0)
    places = None
    for d, (size, count, extent) in enumerate(zip(x.shape[-axes:], shape[-axes:], kernel)):
        at = axes - 1 - d if axes == 2 else d  # in two axes the columns' number comes first
        starts = w.full(size - extent, torch.int64, (*rows, count))
        if count > 1:
            step = w.constant((size - extent) / (count - 1), dtype)
            sample = w.make("Gather", [samples, w.constant([at])], dtype, line, axis=len(rows))
            ahead = w.make("Add", [sample, w.constant(torch.arange(count - 1).to(dtype))], dtype, (*rows, count - 1))
            scaled = [w.cast(w.make("Mul", [t, step], dtype, t.shape), torch.int64) for t in (ahead, sample)]
            starts = w.make("Sub", scaled, torch.int64, ahead.shape)
            starts = w.make("Concat", [starts, w.full(size - extent, torch.int64, line)], torch.int64, (*rows, count), axis=-1)
        spread = [1] * 2 * axes
        spread[d] = count
        starts = w.reshape(starts, (*rows, *spread))
        within = [1] * 2 * axes
        within[axes + d] = extent
        span = w.make("Add", [starts, w.constant(torch.arange(extent).reshape(within))], torch.int64,
                      [*rows, *(a * b for a, b in zip(spread, within))])
        if places is None:
            places = span
            continue
        sizes = [max(a, b) for a, b in zip(places.shape, span.shape)]
        places = w.make("Mul", [places, w.constant(size)], torch.int64, places.shape)
        places = w.make("Add", [places, span], torch.int64, sizes)
    return _largest(w, node, axes, x, w.reshape(places, (*rows, math.prod(shape[-axes:]), math.prod(kernel))))


def _given_back(w, node, axes, dy, indices):
    """Each gradient at the place that its element came from."""
    dtype, shape = result(node)
    if not is_static(shape):
        raise Refused("places in planes of sizes that are not numbers")
    rows = shape[:len(shape) - axes]
    dy, indices = (w.reshape(t, (*rows, math.prod(t.shape[-axes:]))) for t in (dy, indices))
    nothing = w.full(0, dtype, (*rows, math.prod(shape[-axes:])))
    return w.reshape(w.make("ScatterElements", [nothing, indices, dy], dtype, nothing.shape, axis=-1, reduction="add"), shape)


@_pools(aten.adaptive_max_pool2d_backward.default, aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool_backward(w, node, axes, dy, x, indices):
    return _given_back(w, node, axes, dy, indices)


@_pools(aten.fractional_max_pool2d_backward.default, aten.fractional_max_pool3d_backward.default)
def fractional_max_pool_backward(w, node, axes, dy, x, kernel, counts, indices):
    return _given_back(w, node, axes, dy, indices)
