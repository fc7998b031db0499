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


@raises(aten.native_layer_norm.default)
def layer_norm(w, node, x, sizes, weight, bias, epsilon):
    weight = weight if weight is not None else _ones(w, x.dtype, x.shape[x.rank - len(sizes):])
    inputs = [x, weight] + ([bias] if bias is not None else [])
    y, mean, inv_std = w.op("LayerNormalization", inputs, outputs=3, axis=-len(sizes), epsilon=float(epsilon))
    statistics = torch.float64 if x.dtype == torch.float64 else torch.float32
    results = [Tensor(y, *result(node, 0))]
    for i, name in ((1, mean), (2, inv_std)):
        dtype, shape = result(node, i)
        results.append(w.cast(Tensor(name, statistics, shape), dtype) if is_read(node, i) else None)
    return tuple(results)


@raises(aten.native_layer_norm_backward.default)
def layer_norm_backward(w, node, dy, x, sizes, mean, inv_std, weight, bias, wanted):
    weight = weight if weight is not None else _ones(w, x.dtype, x.shape[x.rank - len(sizes):])
    statistics = torch.float64 if x.dtype == torch.float64 else torch.float32
    inputs = [dy, x, weight, w.cast(mean, statistics), w.cast(inv_std, statistics)]
    outputs = [w.fresh("layer_norm_grad") if want and is_read(node, i) else "" for i, want in enumerate(wanted)]
    w.node("LayerNormalizationGrad", inputs, outputs, domain=DOMAIN, axis=-len(sizes))
    return tuple(Tensor(name, *result(node, i)) if name else None for i, name in enumerate(outputs))


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
