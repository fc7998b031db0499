# SPDX-License-Identifier: Apache-2.0
"""ONNX ops as PyTorch has them: elementwise, products, reductions.

Each takes the node's attributes (a dict), then its inputs (None for an absent one).
"""

import torch
import torch.nn.functional as F
from gradients_beside_pytorch_movement import ints

_DTYPES = {1: torch.float32, 7: torch.int64, 9: torch.bool, 11: torch.float64}


def _clip(a, x, low=None, high=None):
    return x if low is None and high is None else torch.clamp(x, low, high)


def _dequantize(a, q, scale, zero=None):
    if scale.dim():
        scale = scale.reshape([-1 if i == a["axis"] % q.dim() else 1 for i in range(q.dim())])
    return (q.to(scale.dtype) - (0 if zero is None else zero.to(scale.dtype))) * scale


def _fold(function):
    def run(a, *xs):
        total = xs[0]
        for x in xs[1:]:
            total = function(total, x)
        return total
    return run


def _nbits_weights(a, q, scales, zeros):
    """Returns W [N, K] of 4 bits."""
    def numbers(packed):
        return torch.stack([packed & 15, packed >> 4], -1).flatten(-2).to(scales.dtype)

    w = numbers(q) - (8 if zeros is None else numbers(zeros)[:, :scales.shape[1], None])
    return (w * scales[..., None]).flatten(1)[:, :a["K"]]


def _matmul_nbits(a, x, q, scales, zeros=None, groups=None, bias=None):
    y = x @ _nbits_weights(a, q, scales, zeros).T
    return y if bias is None else y + bias


def _transposed_matmul_nbits(a, x, q, scales, zeros=None, groups=None, bias=None):
    y = x @ _nbits_weights(a, q, scales, zeros)
    return y if bias is None else y + bias


def _selu(a, x):
    """With ONNX's coefficients, which are PyTorch's rounded to float32."""
    alpha, gamma = a.get("alpha", 1.67326319217681884765625), a.get("gamma", 1.05070102214813232421875)
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


def _shrink(a, x):
    bias, limit = a.get("bias", 0.0), a.get("lambd", 0.5)
    return torch.where(x < -limit, x + bias, torch.where(x > limit, x - bias, 0 * x))


def _swiglu(a, x, gate):
    alpha = a.get("alpha", 1.0)
    return x * torch.sigmoid(alpha * x) * gate


ELEMENTWISE = {
    "Abs": lambda a, x: x.abs(),
    "Acos": lambda a, x: x.acos(),
    "Acosh": lambda a, x: x.acosh(),
    "Add": lambda a, x, y: x + y,
    "Asin": lambda a, x: x.asin(),
    "Asinh": lambda a, x: x.asinh(),
    "Atan": lambda a, x: x.atan(),
    "Atanh": lambda a, x: x.atanh(),
    "Cast": lambda a, x: x.to(_DTYPES[a["to"]]),
    "CastLike": lambda a, x, like: x.to(like.dtype),
    "Celu": lambda a, x: F.celu(x, a.get("alpha", 1.0)),
    "Clip": _clip,
    "Cos": lambda a, x: x.cos(),
    "Cosh": lambda a, x: x.cosh(),
    "DequantizeLinear": _dequantize,
    "Div": lambda a, x, y: x / y,
    "Elu": lambda a, x: F.elu(x, a.get("alpha", 1.0)),
    "Equal": lambda a, x, y: x == y,
    "Erf": lambda a, x: x.erf(),
    "Exp": lambda a, x: x.exp(),
    "Floor": lambda a, x: x.floor(),
    "Gelu": lambda a, x: F.gelu(x, approximate=a.get("approximate", "none")),
    "Greater": lambda a, x, y: x > y,
    "HardSigmoid": lambda a, x: torch.clamp(a.get("alpha", 0.2) * x + a.get("beta", 0.5), 0, 1),
    "HardSwish": lambda a, x: F.hardswish(x),
    "Identity": lambda a, x: x,
    "LeakyRelu": lambda a, x: F.leaky_relu(x, a.get("alpha", 0.01)),
    "Less": lambda a, x, y: x < y,
    "Log": lambda a, x: x.log(),
    "Max": _fold(torch.maximum),
    "Mean": lambda a, *xs: sum(xs) / len(xs),
    "Min": _fold(torch.minimum),
    "Mish": lambda a, x: F.mish(x),
    "Mod": lambda a, x, y: torch.fmod(x, y),
    "Mul": lambda a, x, y: x * y,
    "Neg": lambda a, x: -x,
    "Not": lambda a, x: ~x,
    "PRelu": lambda a, x, slope: torch.where(x < 0, slope * x, x),
    "Pow": lambda a, x, y: torch.pow(x, y),
    "Reciprocal": lambda a, x: x.reciprocal(),
    "Relu": lambda a, x: x.relu(),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": lambda a, x: x.sigmoid(),
    "Sign": lambda a, x: x.sign(),
    "Sin": lambda a, x: x.sin(),
    "Sinh": lambda a, x: x.sinh(),
    "Softplus": lambda a, x: F.softplus(x, threshold=100),
    "Softsign": lambda a, x: F.softsign(x),
    "Sqrt": lambda a, x: x.sqrt(),
    "Sub": lambda a, x, y: x - y,
    "Sum": _fold(torch.add),
    "SwiGLU": _swiglu,
    "Swish": lambda a, x: x * torch.sigmoid(a.get("alpha", 1.0) * x),
    "Tan": lambda a, x: x.tan(),
    "Tanh": lambda a, x: x.tanh(),
    "ThresholdedRelu": lambda a, x: F.threshold(x, a.get("alpha", 1.0), 0.0),
    "Where": lambda a, c, x, y: torch.where(c, x, y),
}


def _gemm(a, x, y, c=None):
    x, y = (m.t() if a.get(key) else m for m, key in ((x, "transA"), (y, "transB")))
    product = a.get("alpha", 1.0) * (x @ y)
    return product if c is None else product + a.get("beta", 1.0) * c


def _fused_matmul(a, x, y):
    return torch.matmul(x.mT if a.get("transA") else x, y.mT if a.get("transB") else y)


PRODUCTS = {
    "Det": lambda a, x: torch.linalg.det(x),
    "Einsum": lambda a, *xs: torch.einsum(a["equation"].replace(" ", ""), *xs),
    "FusedMatMul": _fused_matmul,
    "MatMulNBits": _matmul_nbits,
    "TransposedMatMulNBits": _transposed_matmul_nbits,
    "Gemm": _gemm,
    "MatMul": lambda a, x, y: torch.matmul(x, y),
}


def _reduce(function):
    def run(a, x, axes=None):
        dims = [] if axes is None else ints(axes)
        if not dims:
            if a.get("noop_with_empty_axes") or x.dim() == 0:
                dims = []
            else:
                dims = list(range(x.dim()))
        return function(x, dims, bool(a.get("keepdims", 1)))
    return run


def _prod(x, dims, keep):
    for axis in sorted((d % x.dim() for d in dims), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _without_axes(function, elementwise):
    """PyTorch treats empty axes as all axes. Over no axis, a reduction is this function of each element."""
    return _reduce(lambda x, dims, keep: function(x, dims, keep) if dims else elementwise(x))


def _same(x):
    return x


def _cumulative(function):
    def run(a, x, axis):
        axis = int(axis)
        if a.get("reverse"):
            x = x.flip(axis)
        if a.get("exclusive"):
            first = x.narrow(axis, 0, 1)
            filler = torch.zeros_like(first) if function is torch.cumsum else torch.ones_like(first)
            x = torch.cat([filler, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
        x = function(x, axis)
        return x.flip(axis) if a.get("reverse") else x
    return run


REDUCTIONS = {
    "CumProd": _cumulative(torch.cumprod),
    "CumSum": _cumulative(torch.cumsum),
    "LogCumSumExp": lambda a, x: torch.logcumsumexp(x, a["axis"]),
    "ReduceL1": _without_axes(lambda x, d, k: x.abs().sum(d, k), torch.abs),
    "ReduceL2": _without_axes(lambda x, d, k: torch.linalg.vector_norm(x, 2, d, k), torch.abs),
    "ReduceLogSum": _without_axes(lambda x, d, k: x.sum(d, k).log(), torch.log),
    "ReduceLogSumExp": _without_axes(torch.logsumexp, _same),
    "ReduceMax": _without_axes(torch.amax, _same),
    "ReduceMean": _without_axes(torch.mean, _same),
    "ReduceMin": _without_axes(torch.amin, _same),
    "ReduceProd": _without_axes(_prod, _same),
    "ReduceSum": _without_axes(torch.sum, _same),
    "ReduceSumSquare": _without_axes(lambda x, d, k: x.square().sum(d, k), torch.square),
}

OPS = {**ELEMENTWISE, **PRODUCTS, **REDUCTIONS}
