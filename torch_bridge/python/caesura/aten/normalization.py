# SPDX-License-Identifier: Apache-2.0
"""Layer and batch normalization, forward and backward."""

import torch

from caesura.aten.results import is_read, result
from caesura.aten.table import Refused, aten, raises
from caesura.aten.writer import DOMAIN, Tensor, is_static


def _ones(w, dtype, shape):
    if not is_static(shape):
        raise Refused("a norm without weights over sizes that are not numbers")
    return w.constant(torch.ones(shape, dtype=dtype))


def _statistics(dtype):
    """The dtype of mean and deviation."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _layer_norm_in_double(w, x, weight, bias, axes, epsilon):
    """(y, mean, inverse deviation) by arithmetic: ONNX's op keeps its statistics in float32."""
    kept = [1 if d in axes else s for d, s in enumerate(x.shape)]
    make = lambda op_type, inputs, shape, **more: w.make(op_type, inputs, x.dtype, shape, **more)  # noqa: E731
    mean = make("ReduceMean", [x, w.constant(axes)], kept, keepdims=1)
    away = make("Sub", [x, mean], x.shape)
    variance = make("ReduceMean", [make("Mul", [away, away], x.shape), w.constant(axes)], kept, keepdims=1)
    shifted = make("Add", [variance, w.constant(epsilon, x.dtype)], kept)
    inv_std = make("Reciprocal", [make("Sqrt", [shifted], kept)], kept)
    y = make("Mul", [make("Mul", [away, inv_std], x.shape), weight], x.shape)
    y = make("Add", [y, bias], x.shape) if bias is not None else y
    return y.name, mean.name, inv_std.name


@raises(aten.native_layer_norm.default)
def layer_norm(w, node, x, sizes, weight, bias, epsilon):
    # Weights wider than x (under autocast) are computed with as they are.
    x = w.cast(x, weight.dtype) if weight is not None else x
    weight = weight if weight is not None else _ones(w, x.dtype, x.shape[x.rank - len(sizes):])
    if x.dtype == torch.float64:
        y, mean, inv_std = _layer_norm_in_double(w, x, weight, bias, list(range(x.rank - len(sizes), x.rank)), epsilon)
    else:
        inputs = [x, weight] + ([bias] if bias is not None else [])
        y, mean, inv_std = w.op("LayerNormalization", inputs, outputs=3, axis=-len(sizes), epsilon=float(epsilon))
    results = [w.cast(Tensor(y, x.dtype, x.shape), result(node, 0)[0])]
    for i, name in ((1, mean), (2, inv_std)):
        dtype, shape = result(node, i)
        results.append(w.cast(Tensor(name, _statistics(x.dtype), shape), dtype) if is_read(node, i) else None)
    return tuple(results)


@raises(aten.native_layer_norm_backward.default)
def layer_norm_backward(w, node, dy, x, sizes, mean, inv_std, weight, bias, wanted):
    dtype = x.dtype if weight is None else weight.dtype
    dy, x = w.cast(dy, dtype), w.cast(x, dtype)
    weight = weight if weight is not None else _ones(w, dtype, x.shape[x.rank - len(sizes):])
    statistics = _statistics(dtype)
    inputs = [dy, x, weight, w.cast(mean, statistics), w.cast(inv_std, statistics)]
    outputs = [w.fresh("layer_norm_grad") if want and is_read(node, i) else "" for i, want in enumerate(wanted)]
    w.node("LayerNormalizationGrad", inputs, outputs, domain=DOMAIN, axis=-len(sizes))
    return tuple(w.cast(Tensor(name, dtype, result(node, i)[1]), result(node, i)[0]) if name else None
                 for i, name in enumerate(outputs))


def _batch_inputs(w, x, weight, bias):
    channels = x.shape[1:2]
    dtype = weight.dtype if weight is not None else x.dtype
    if dtype != x.dtype:
        raise Refused("a batch norm of mixed dtypes")
    weight = weight if weight is not None else _ones(w, dtype, channels)
    bias = bias if bias is not None else w.full(0, dtype, channels)
    return weight, bias


@raises(aten._native_batch_norm_legit_functional.default)
def batch_norm(w, node, x, weight, bias, mean, variance, training, momentum, epsilon):
    weight, bias = _batch_inputs(w, x, weight, bias)
    if not training:
        y = w.make("BatchNormalization", [x, weight, bias, mean, variance], *result(node, 0), epsilon=float(epsilon))
        return y, w.full(0, x.dtype, (0,)), w.full(0, x.dtype, (0,)), mean, variance
    outputs = w.op("BatchNormalizationTraining", [x, weight, bias, mean, variance], outputs=5, domain=DOMAIN,
                   epsilon=float(epsilon), momentum=1 - float(momentum), unbiased=1)
    y, new_mean, new_variance, saved_mean, saved_inv_std = outputs
    order = (y, saved_mean, saved_inv_std, new_mean, new_variance)
    return tuple(Tensor(name, *result(node, i)) for i, name in enumerate(order))


@raises(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(w, node, x, weight, bias, mean, variance, momentum, epsilon):
    return batch_norm(w, node, x, weight, bias, mean, variance, False, momentum, epsilon)


@raises(aten.native_batch_norm_backward.default)
def batch_norm_backward(w, node, dy, x, weight, mean, variance, saved_mean, saved_inv_std, training, epsilon, wanted):
    if not training:
        raise Refused("the gradient of a batch norm in evaluation mode")
    weight, _ = _batch_inputs(w, x, weight, None)
    outputs = w.op("BatchNormalizationGrad", [dy, x, weight, saved_mean, saved_inv_std], outputs=3, domain=DOMAIN,
                   epsilon=float(epsilon))
    return tuple(Tensor(name, *result(node, i)) if want else None
                 for i, (name, want) in enumerate(zip(outputs, wanted)))
