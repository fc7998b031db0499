# SPDX-License-Identifier: Apache-2.0
"""Pools, forward and backward."""

import torch

from caesura.aten.results import is_read, result
from caesura.aten.table import Refused, aten, raises
from caesura.aten.writer import DOMAIN, Tensor, is_static


def _window(kernel, stride, padding, ceil_mode, dilation=None):
    spread = lambda values: list(values) * 2 if len(values) == 1 else list(values)  # noqa: E731
    kernel = spread(kernel)
    made = {"kernel_shape": kernel, "strides": spread(stride) if stride else kernel, "pads": spread(padding) * 2,
            "ceil_mode": int(ceil_mode)}
    if dilation is not None:
        made["dilations"] = spread(dilation)
    return made


def _batched(w, x, rank=4):
    """A single image as a batch of one."""
    return x if x.rank == rank else w.reshape(x, (1, *x.shape))


@raises(aten.max_pool2d_with_indices.default)
def max_pool(w, node, x, kernel, stride, padding, dilation, ceil_mode):
    (dtype, shape), (_, places) = result(node, 0), result(node, 1)
    batch = _batched(w, x)
    attributes = _window(kernel, stride, padding, ceil_mode, dilation)
    if not is_read(node, 1):
        y = w.op("MaxPool", [batch], **attributes)
        return w.reshape(Tensor(y, dtype, (*batch.shape[:2], *shape[-2:])), shape), None
    if not is_static(x.shape[-2:]):
        raise Refused("places in planes of sizes that are not numbers")
    y, indices = w.op("MaxPool", [batch], outputs=2, **attributes)
    # ONNX counts places over the whole tensor, PyTorch over the plane.
    plane = w.constant(x.shape[-2] * x.shape[-1])
    indices = w.make("Mod", [indices, plane], torch.int64, (*batch.shape[:2], *shape[-2:]))
    return w.reshape(Tensor(y, dtype, indices.shape), shape), w.reshape(indices, places)


@raises(aten.max_pool2d_with_indices_backward.default)
def max_pool_backward(w, node, dy, x, kernel, stride, padding, dilation, ceil_mode, indices):
    dtype, shape = result(node)
    attributes = _window(kernel, stride, padding, ceil_mode, dilation)
    batch = _batched(w, x)
    dx = w.make("MaxPoolGrad", [_batched(w, dy), batch], dtype, batch.shape, domain=DOMAIN, **attributes)
    return w.reshape(dx, shape)


def _check_average(x, kernel, padding):
    window = _window(kernel, None, padding, False)
    sizes = zip(x.shape[-2:], window["kernel_shape"], window["pads"])
    if any(isinstance(size, int) and size + 2 * pad < extent for size, extent, pad in sizes):
        raise Refused("a window larger than the padded input")


def _divided_otherwise(w, y, sizes, window, divisor):
    """What the average counts its window (padding included) for, as if it were `divisor`. sizes: those that are pooled."""
    if divisor is None:
        return y
    if not is_static((*y.shape[-2:], *sizes)):
        raise Refused("a divisor of its own over sizes that are not numbers")
    spans, parts = [], (window[name] for name in ("kernel_shape", "strides", "pads"))
    for count, size, extent, stride, pad in zip(y.shape[-2:], sizes, *parts):
        starts = torch.arange(count) * stride - pad
        spans.append((starts + extent).clamp(max=size + pad) - starts)  # the last one may end outside, by ceil_mode
    return w.make("Mul", [y, w.constant((torch.outer(*spans).double() / divisor).to(y.dtype))], y.dtype, y.shape)


@raises(aten.avg_pool2d.default)
def average_pool(w, node, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor):
    _check_average(x, kernel, padding)
    dtype, shape = result(node)
    batch, window = _batched(w, x), _window(kernel, stride, padding, ceil_mode)
    y = w.make("AveragePool", [batch], dtype, (*batch.shape[:2], *shape[-2:]), **window,
               count_include_pad=int(count_include_pad or divisor is not None))
    return w.reshape(_divided_otherwise(w, y, x.shape[-2:], window, divisor), shape)


@raises(aten.avg_pool2d_backward.default)
def average_pool_backward(w, node, dy, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor):
    _check_average(x, kernel, padding)
    dtype, shape = result(node)
    batch, window = _batched(w, x), _window(kernel, stride, padding, ceil_mode)
    dy = _divided_otherwise(w, _batched(w, dy), x.shape[-2:], window, divisor)
    dx = w.make("AveragePoolGrad", [dy, batch], dtype, batch.shape, domain=DOMAIN, **window,
                count_include_pad=int(count_include_pad or divisor is not None))
    return w.reshape(dx, shape)


def _adaptive(sizes, counts):
    """Of each axis the window of each result: a range of places."""
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
    counts = [torch.tensor([len(p) for p in places], dtype=torch.float64) for places in windows]
    return torch.stack(torch.meshgrid(*counts, indexing="ij")).prod(0).to(dtype)


@raises(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_average_pool(w, node, x, counts):
    dtype, shape = result(node)
    axes = len(counts)
    windows, window = _adaptive(x.shape[-axes:], shape[-axes:]), _even(x.shape[-axes:], shape[-axes:])
    if window:
        batch = _batched(w, x, axes + 2)
        return w.reshape(w.make("AveragePool", [batch], dtype, (*batch.shape[:2], *shape[-axes:]), **window), shape)
    y = _wide(w, x)
    for axis, places in enumerate(windows, x.rank - axes):
        y = _sums(w, y, axis, places)
    return w.cast(w.make("Div", [y, w.constant(_elements_of(windows, y.dtype))], y.dtype, shape), dtype)


@raises(aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default)
def adaptive_average_pool_backward(w, node, dy, x):
    dtype, shape = result(node)
    axes = 2 if node.target == aten._adaptive_avg_pool2d_backward.default else 3
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
