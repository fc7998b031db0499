# SPDX-License-Identifier: Apache-2.0
"""Layer, batch and group normalization, forward and backward."""

import math

import torch

from caesura.lowering.onnx_builder import DOMAIN, Tensor
from caesura.lowering.registry import Refused, aten, register
from caesura.rewrites.fx_meta import is_read, is_static, result


def _ones(w, dtype, shape):
    if not is_static(shape):
        raise Refused("a norm without weights over sizes that are not numbers")
    return w.constant(torch.ones(shape, dtype=dtype))


def _statistics(dtype):
    """The dtype of mean and deviation."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _inverse_deviation(w, variance, epsilon):
    vector = lambda op_type, *inputs: w.make(op_type, inputs, variance.dtype, variance.shape)  # noqa: E731
    return vector("Reciprocal", vector("Sqrt", vector("Add", variance, w.constant(epsilon, variance.dtype))))


def _normalize(w, x, axes, epsilon):
    """(x with mean 0 and deviation 1 over the axes, mean, inverse deviation), by arithmetic in x's dtype."""
    kept = [1 if d in axes else s for d, s in enumerate(x.shape)]
    make = lambda op_type, inputs, shape, **more: w.make(op_type, inputs, x.dtype, shape, **more)  # noqa: E731
    mean = make("ReduceMean", [x, w.constant(axes)], kept, keepdims=1)
    away = make("Sub", [x, mean], x.shape)
    variance = make("ReduceMean", [make("Mul", [away, away], x.shape), w.constant(axes)], kept, keepdims=1)
    inv_std = _inverse_deviation(w, variance, epsilon)
    return make("Mul", [away, inv_std], x.shape), mean, inv_std


def _layer_norm_in_double(w, x, weight, bias, axes, epsilon):
    """(y, mean, inverse deviation): ONNX's op keeps its statistics in float32."""
    y, mean, inv_std = _normalize(w, x, axes, epsilon)
    y = w.make("Mul", [y, weight], x.dtype, x.shape)
    y = w.make("Add", [y, bias], x.dtype, x.shape) if bias is not None else y
    return y.name, mean.name, inv_std.name


@register(aten.native_layer_norm.default)
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


@register(aten.native_layer_norm_backward.default)
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


def _channel_vector(w, x, vector, value):
    """`vector`, or where it is None the value for each of x's channels."""
    if vector is None:
        channels = x.shape[1:2]
        if is_static(channels):
            return w.constant(torch.full(channels, value, dtype=x.dtype))
        size = w.op("Shape", [x], start=1, end=2)
        return w.make("Expand", [w.constant([value], x.dtype), size], x.dtype, channels)
    if vector.dtype != x.dtype:
        raise Refused("a norm of mixed dtypes")
    return vector


def _widened(w, x, *vectors):
    """x in the dtype of the first of the vectors that there is: autocast leaves them as they are."""
    return w.cast(x, next((v.dtype for v in vectors if v is not None), x.dtype))


def _elements(w, x, axes):
    """The number of elements of x along the axes, as a scalar in x's dtype."""
    if is_static(x.shape):
        return w.constant(math.prod(x.shape[d] for d in axes), x.dtype)
    sizes = w.op("Gather", [w.op("Shape", [x]), w.constant(axes)])
    return w.cast(w.make("ReduceProd", [sizes], torch.int64, (), keepdims=0), x.dtype)


def _batch_norm_in_double(w, x, weight, bias, mean, variance, momentum, epsilon):
    """Training mode, by arithmetic: epsilon and momentum, as attributes, would be rounded to float32.

    (y, mean of the batch, inverse deviation, new mean, new variance).
    """
    axes = [d for d in range(x.rank) if d != 1]
    make = lambda op_type, *inputs: w.make(op_type, inputs, x.dtype, x.shape[1:2])  # noqa: E731
    total = lambda t: w.make("ReduceSum", [t, w.constant(axes)], x.dtype, x.shape[1:2], keepdims=0)  # noqa: E731
    y, batch_mean, inv_std = _normalize(w, x, axes, epsilon)
    y = _scaled(w, y, weight, bias)
    batch_mean, inv_std = (w.make("Squeeze", [s, w.constant(axes)], s.dtype, x.shape[1:2]) for s in (batch_mean, inv_std))
    away = w.make("Sub", [x, _along_channels(w, x, batch_mean)], x.dtype, x.shape)
    others = make("Sub", _elements(w, x, axes), w.constant(1.0, x.dtype))
    batch_variance = make("Div", total(w.make("Mul", [away, away], x.dtype, x.shape)), others)
    share = lambda old, new: make("Add", make("Mul", old, w.constant(1 - float(momentum), x.dtype)),  # noqa: E731
                                  make("Mul", new, w.constant(float(momentum), x.dtype)))
    return y, batch_mean, inv_std, share(mean, batch_mean), share(variance, batch_variance)


@register(aten._native_batch_norm_legit_functional.default)
def batch_norm(w, node, x, weight, bias, mean, variance, training, momentum, epsilon):
    given, x = x, _widened(w, x, weight, mean)
    if x.dtype == torch.float64:
        if not training:
            y = fixed_batch_norm(w, node, given, weight, bias, mean, variance, epsilon)
            return y, w.full(0, x.dtype, (0,)), w.full(0, x.dtype, (0,)), mean, variance
        weight, bias = _channel_vector(w, x, weight, 1), _channel_vector(w, x, bias, 0)
        made = _batch_norm_in_double(w, x, weight, bias, mean, variance, momentum, epsilon)
        return tuple(w.cast(t, result(node, i)[0]) for i, t in enumerate(made))
    weight, bias = _channel_vector(w, x, weight, 1), _channel_vector(w, x, bias, 0)
    dtype, shape = result(node, 0)
    if not training:
        y = w.make("BatchNormalization", [x, weight, bias, mean, variance], x.dtype, shape, epsilon=float(epsilon))
        return w.cast(y, dtype), w.full(0, x.dtype, (0,)), w.full(0, x.dtype, (0,)), mean, variance
    outputs = w.op("BatchNormalizationTraining", [x, weight, bias, mean, variance], outputs=5, domain=DOMAIN,
                   epsilon=float(epsilon), momentum=1 - float(momentum), unbiased=1)
    y, new_mean, new_variance, saved_mean, saved_inv_std = outputs
    results = [Tensor(y, x.dtype, shape)]
    results += [Tensor(name, mean.dtype, x.shape[1:2]) for name in (saved_mean, saved_inv_std, new_mean, new_variance)]
    return tuple(w.cast(t, result(node, i)[0]) for i, t in enumerate(results))


@register(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(w, node, x, weight, bias, mean, variance, momentum, epsilon):
    return batch_norm(w, node, x, weight, bias, mean, variance, False, momentum, epsilon)


def _along_channels(w, x, vector):
    """A number for each of x's channels, as a tensor that broadcasts to x."""
    shape = [*vector.shape, *(1 for _ in x.shape[2:])]
    return w.make("Unsqueeze", [vector, w.constant(list(range(1, x.rank - 1)))], vector.dtype, shape)


def _scaled(w, y, weight, bias):
    for op_type, vector in (("Mul", weight), ("Add", bias)):
        y = w.make(op_type, [y, _along_channels(w, y, vector)], y.dtype, y.shape)
    return y


@register(aten._native_batch_norm_legit.no_stats)
def batch_norm_without_statistics(w, node, x, weight, bias, training, momentum, epsilon):
    x = _widened(w, x, weight)
    weight, bias = _channel_vector(w, x, weight, 1), _channel_vector(w, x, bias, 0)
    axes = [d for d in range(x.rank) if d != 1]
    y, mean, inv_std = _normalize(w, w.cast(x, _statistics(x.dtype)), axes, epsilon)
    y = w.cast(_scaled(w, w.cast(y, x.dtype), weight, bias), result(node, 0)[0])
    return y, *(w.make("Squeeze", [s, w.constant(axes)], s.dtype, x.shape[1:2]) for s in (mean, inv_std))


def fixed_batch_norm(w, node, x, weight, bias, mean, variance, epsilon):
    """Evaluation mode, by arithmetic: a model that is trained would switch BatchNormalization to training mode."""
    x = _widened(w, x, weight, mean)
    weight, bias = _channel_vector(w, x, weight, 1), _channel_vector(w, x, bias, 0)
    scale = w.make("Mul", [weight, _inverse_deviation(w, variance, epsilon)], x.dtype, weight.shape)
    for op_type, vector in (("Sub", mean), ("Mul", scale), ("Add", bias)):
        x = w.make(op_type, [x, _along_channels(w, x, vector)], x.dtype, x.shape)
    return w.cast(x, result(node, 0)[0])


def _fixed_batch_norm_backward(w, dy, x, weight, mean, variance, epsilon, wanted):
    make = lambda op_type, inputs, shape=x.shape: w.make(op_type, inputs, x.dtype, shape)  # noqa: E731
    total = lambda value: w.make("ReduceSum", [value, w.constant([d for d in range(x.rank) if d != 1])], x.dtype,  # noqa: E731
                                 x.shape[1:2], keepdims=0)
    inv_std = _inverse_deviation(w, variance, epsilon)
    dx = dweight = dbias = None
    if wanted[0]:
        dx = make("Mul", [dy, _along_channels(w, x, make("Mul", [weight, inv_std], inv_std.shape))])
    if wanted[1]:
        away = make("Sub", [x, _along_channels(w, x, mean)])
        dweight = make("Mul", [total(make("Mul", [dy, away])), inv_std], inv_std.shape)
    if wanted[2]:
        dbias = total(dy)
    return dx, dweight, dbias


@register(aten.native_batch_norm_backward.default)
def batch_norm_backward(w, node, dy, x, weight, mean, variance, saved_mean, saved_inv_std, training, epsilon, wanted):
    dy, x = (_widened(w, t, weight, mean) for t in (dy, x))
    weight = _channel_vector(w, x, weight, 1)
    if training:
        saved = [w.cast(t, x.dtype) for t in (saved_mean, saved_inv_std)]
        names = w.op("BatchNormalizationGrad", [dy, x, weight, *saved], outputs=3, domain=DOMAIN, epsilon=float(epsilon))
        made = [Tensor(name, x.dtype, result(node, i)[1]) if wanted[i] else None for i, name in enumerate(names)]
    else:
        made = _fixed_batch_norm_backward(w, dy, x, weight, mean, variance, epsilon, wanted)
    return tuple(w.cast(t, result(node, i)[0]) if t is not None else None for i, t in enumerate(made))


@register(aten.native_group_norm.default)
def group_norm(w, node, x, weight, bias, batch, channels, positions, groups, epsilon):
    x = _widened(w, x, weight)
    weight, bias = _channel_vector(w, x, weight, 1), _channel_vector(w, x, bias, 0)
    dtype, shape = result(node, 0)
    in_double, has_statistics = x.dtype == torch.float64, is_read(node, 1) or is_read(node, 2)
    if in_double or has_statistics:
        wide = w.cast(x, _statistics(x.dtype))
        size = channels // groups * positions if isinstance(positions, int) else -1
        if size == 0:
            raise Refused("the statistics of nothing")
        run = w.make("Reshape", [wide, w.constant([0, groups, size])], wide.dtype, [x.shape[0], groups, size])
        y, *statistics = _normalize(w, run, [2], epsilon)
    if in_double:  # epsilon, as an attribute, would be rounded to float32
        sizes = w.constant(list(shape)) if is_static(shape) else w.op("Shape", [x])
        y = _scaled(w, w.make("Reshape", [y, sizes], x.dtype, shape), weight, bias)
    else:
        y = w.make("GroupNormalization", [x, weight, bias], x.dtype, shape, num_groups=groups, epsilon=float(epsilon))
    y = w.cast(y, dtype)
    if not has_statistics:
        return y, None, None
    statistics = [w.make("Squeeze", [s, w.constant([2])], s.dtype, s.shape[:2]) for s in statistics]
    return y, *(w.cast(s, result(node, i)[0]) for i, s in enumerate(statistics, 1))
