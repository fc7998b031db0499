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


def _check_average(x, kernel, padding, divisor):
    if divisor is not None:
        raise Refused("a divisor of its own")
    window = _window(kernel, None, padding, False)
    sizes = zip(x.shape[-2:], window["kernel_shape"], window["pads"])
    if any(isinstance(size, int) and size + 2 * pad < extent for size, extent, pad in sizes):
        raise Refused("a window larger than the padded input")


@raises(aten.avg_pool2d.default)
def average_pool(w, node, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor):
    _check_average(x, kernel, padding, divisor)
    dtype, shape = result(node)
    batch = _batched(w, x)
    y = w.make("AveragePool", [batch], dtype, (*batch.shape[:2], *shape[-2:]), **_window(kernel, stride, padding, ceil_mode),
               count_include_pad=int(count_include_pad))
    return w.reshape(y, shape)


@raises(aten.avg_pool2d_backward.default)
def average_pool_backward(w, node, dy, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor):
    _check_average(x, kernel, padding, divisor)
    dtype, shape = result(node)
    batch = _batched(w, x)
    dx = w.make("AveragePoolGrad", [_batched(w, dy), batch], dtype, batch.shape, domain=DOMAIN,
                **_window(kernel, stride, padding, ceil_mode), count_include_pad=int(count_include_pad))
    return w.reshape(dx, shape)
