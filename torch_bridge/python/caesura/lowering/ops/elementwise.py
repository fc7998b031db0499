# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on elements: unary and binary functions, comparisons, casts."""

import math

import torch

from caesura.lowering.onnx_builder import DOMAIN, Scalar, Tensor, same_shape
from caesura.lowering.registry import TABLE, Refused, aten, register
from caesura.rewrites.fx_meta import result

# --- unary ---------------------------------------------------------------------------------------------------

_UNARY = {
    aten.abs: "Abs", aten.neg: "Neg", aten.exp: "Exp", aten.log: "Log", aten.sqrt: "Sqrt", aten.sin: "Sin",
    aten.cos: "Cos", aten.tan: "Tan", aten.asin: "Asin", aten.acos: "Acos", aten.atan: "Atan", aten.sinh: "Sinh",
    aten.cosh: "Cosh", aten.tanh: "Tanh", aten.asinh: "Asinh", aten.acosh: "Acosh", aten.atanh: "Atanh",
    aten.sigmoid: "Sigmoid", aten.erf: "Erf", aten.reciprocal: "Reciprocal", aten.floor: "Floor",
    aten.ceil: "Ceil", aten.round: "Round", aten.relu: "Relu",
}
# These ops return integers unchanged.
_ROUNDING = ("Floor", "Ceil", "Round")


def _unary(op_type):
    def write(w, node, x):
        dtype, shape = result(node)
        x = w.cast(x, dtype)
        if op_type in _ROUNDING and not dtype.is_floating_point:
            return x
        return w.make(op_type, [x], dtype, shape)
    return write


for _packet, _op_type in _UNARY.items():
    TABLE[_packet.default] = _unary(_op_type)


@register(aten.sign.default)
def sign(w, node, x):
    dtype, shape = result(node)
    x = w.cast(x, dtype)
    if dtype.is_floating_point:  # PyTorch's is 0 of NaN, ONNX's is NaN
        x = w.make("Shrink", [x], dtype, shape, lambd=0.0, bias=0.0)
    return w.make("Sign", [x], dtype, shape)


def _times(w, x, factor):
    return w.make("Mul", [x, w.constant(factor, x.dtype)], x.dtype, x.shape)


@register(aten.rsqrt.default)
def rsqrt(w, node, x):
    dtype, shape = result(node)
    root = w.make("Sqrt", [w.cast(x, dtype)], dtype, shape)
    return w.make("Reciprocal", [root], dtype, shape)


@register(aten.exp2.default)
def exp2(w, node, x):
    dtype, shape = result(node)
    return w.make("Pow", [w.constant(2, dtype), w.cast(x, dtype)], dtype, shape)


@register(aten.log2.default)
def log2(w, node, x):
    dtype, shape = result(node)
    return _times(w, w.make("Log", [w.cast(x, dtype)], dtype, shape), 1 / math.log(2))


@register(aten.log10.default)
def log10(w, node, x):
    dtype, shape = result(node)
    return _times(w, w.make("Log", [w.cast(x, dtype)], dtype, shape), 1 / math.log(10))


@register(aten.logical_not.default)
def logical_not(w, node, x):
    return w.make("Not", [w.cast(x, torch.bool)], *result(node))


@register(aten.bitwise_not.default)
def bitwise_not(w, node, x):
    return w.make("Not" if x.dtype == torch.bool else "BitwiseNot", [x], *result(node))


@register(aten.isnan.default)
def isnan(w, node, x):
    if not x.dtype.is_floating_point:
        return w.full(False, torch.bool, x.shape)
    return w.make("IsNaN", [x], *result(node))


@register(aten.isinf.default)
def isinf(w, node, x):
    if not x.dtype.is_floating_point:
        return w.full(False, torch.bool, x.shape)
    return w.make("IsInf", [x], *result(node))


@register(aten.trunc.default)
def trunc(w, node, x):
    dtype, shape = result(node)
    if not dtype.is_floating_point:
        return x
    down = w.make("Floor", [w.make("Abs", [x], dtype, shape)], dtype, shape)
    return w.make("Mul", [w.make("Sign", [x], dtype, shape), down], dtype, shape)


@register(aten.square.default)
def square(w, node, x):
    return w.make("Mul", [x, x], *result(node))


# --- activations ---------------------------------------------------------------------------------------------

@register(aten.gelu.default)
def gelu(w, node, x, approximate):
    return w.make("Gelu", [x], *result(node), approximate=approximate)


def _of_one_shape(w, node, *tensors):
    """The call's tensors, which PyTorch broadcasts, in the shape of its result."""
    _, shape = result(node)
    return [t if same_shape(t.shape, shape) else w.make("Expand", [t, w.ints(shape)], t.dtype, shape) for t in tensors]


@register(aten.gelu_backward.default)
def gelu_backward(w, node, dy, x, approximate):
    return w.make("GeluGrad", _of_one_shape(w, node, dy, x), *result(node), domain=DOMAIN, approximate=approximate)


@register(aten.tanh_backward.default)
def tanh_backward(w, node, dy, y):
    return w.make("TanhGrad", _of_one_shape(w, node, dy, y), *result(node), domain=DOMAIN)


@register(aten.sigmoid_backward.default)
def sigmoid_backward(w, node, dy, y):
    return w.make("SigmoidGrad", _of_one_shape(w, node, dy, y), *result(node), domain=DOMAIN)


@register(aten.threshold_backward.default)
def threshold_backward(w, node, dy, y, threshold):
    if threshold == 0:
        return w.make("ReluGrad", _of_one_shape(w, node, dy, y), *result(node), domain=DOMAIN)
    dtype, shape = result(node)
    below = w.make("LessOrEqual", [y, w.constant(threshold, y.dtype)], torch.bool, y.shape)
    return w.make("Where", [below, w.constant(0, dtype), dy], dtype, shape)


@register(aten.silu.default)
def silu(w, node, x):
    dtype, shape = result(node)
    return w.make("Mul", [x, w.make("Sigmoid", [x], dtype, shape)], dtype, shape)


@register(aten.leaky_relu.default)
def leaky_relu(w, node, x, slope):
    return _leaky(w, x, slope, *result(node))


@register(aten.rrelu_with_noise_functional.default)
def rrelu(w, node, x, noise, lower=1 / 8, upper=1 / 3, training=False, generator=None):
    if training:
        raise Refused("slopes that are drawn")
    return _leaky(w, x, (lower + upper) / 2, *result(node, 0)), noise


def _leaky(w, x, slope, dtype, shape):
    if x.dtype != torch.float64:
        return w.make("LeakyRelu", [x], dtype, shape, alpha=float(slope))
    # ONNX's attributes are float32.
    over = w.make("Greater", [x, w.constant(0, dtype)], torch.bool, shape)
    return w.make("Where", [over, x, w.make("Mul", [x, w.constant(slope, dtype)], dtype, shape)], dtype, shape)


# --- binary --------------------------------------------------------------------------------------------------

def operand(w, value, dtype):
    """A tensor or a number, as a tensor of `dtype`."""
    if isinstance(value, Tensor):
        return w.cast(value, dtype)
    if not isinstance(value, (Scalar, bool, int, float)):
        raise Refused(f"an operand of type {type(value).__name__}")
    try:
        return w.constant(value, dtype)
    except (RuntimeError, OverflowError):
        raise Refused(f"{value}, which is no {dtype}") from None


def common_dtype(a, b) -> torch.dtype:
    """The dtype that PyTorch computes in: torch.result_type of the operands."""
    def sample(value):
        if isinstance(value, Tensor):
            return torch.empty((1,) * value.rank, dtype=value.dtype)
        return (1.0 if value.dtype.is_floating_point else 1) if isinstance(value, Scalar) else value
    return torch.result_type(sample(a), sample(b))


_HALVES = (torch.float16, torch.bfloat16)


def _is_finer(value, dtype) -> bool:
    """True if the value is a number, or a tensor of one element, that the dtype would round."""
    if isinstance(value, Tensor):
        return value.rank == 0 and value.dtype in (torch.float32, torch.float64)
    return isinstance(value, Scalar) or torch.tensor(value, dtype=torch.float64).to(dtype).item() != value


def scaling(w, op_type, node, a, b):
    """A product or quotient: of halves PyTorch takes numbers in float32."""
    dtype, shape = result(node)
    if dtype not in _HALVES or not (_is_finer(a, dtype) or _is_finer(b, dtype)):
        return arithmetic(w, op_type, node, a, b)
    made = w.make(op_type, [operand(w, a, torch.float32), operand(w, b, torch.float32)], torch.float32, shape)
    return w.cast(made, dtype)


def arithmetic(w, op_type, node, a, b):
    dtype, shape = result(node)
    return w.make(op_type, [operand(w, a, dtype), operand(w, b, dtype)], dtype, shape)


def _scaled(w, node, b, alpha):
    if isinstance(alpha, (int, float)) and alpha == 1:
        return b
    dtype, _ = result(node)
    b = operand(w, b, dtype)
    return w.make("Mul", [b, operand(w, alpha, dtype)], dtype, b.shape)


@register(aten.add.Tensor, aten.add.Scalar)
def add(w, node, a, b, alpha):
    if result(node)[0] == torch.bool:
        return w.make("Or", [a, operand(w, b, torch.bool)], *result(node))
    return arithmetic(w, "Add", node, a, _scaled(w, node, b, alpha))


@register(aten.sub.Tensor, aten.sub.Scalar)
def sub(w, node, a, b, alpha):
    return arithmetic(w, "Sub", node, a, _scaled(w, node, b, alpha))


@register(aten.rsub.Scalar, aten.rsub.Tensor)
def rsub(w, node, a, b, alpha):
    return arithmetic(w, "Sub", node, b, _scaled(w, node, a, alpha))


@register(aten.mul.Tensor, aten.mul.Scalar)
def mul(w, node, a, b):
    if result(node)[0] == torch.bool:
        return w.make("And", [a, operand(w, b, torch.bool)], *result(node))
    return scaling(w, "Mul", node, a, b)


@register(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(w, node, a, b):
    return scaling(w, "Div", node, a, b)


@register(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide.default, aten.floor_divide.Scalar)
def div_mode(w, node, a, b, rounding="floor"):
    dtype, shape = result(node)
    if rounding is None:
        return div(w, node, a, b)
    if rounding == "trunc":
        quotient = w.make("Div", [operand(w, a, dtype), operand(w, b, dtype)], dtype, shape)
        return trunc(w, node, quotient) if dtype.is_floating_point else quotient
    stated = dtype
    if dtype in _HALVES and not isinstance(b, Tensor):
        dtype = torch.float32  # as PyTorch divides by a number
    a, b = operand(w, a, dtype), operand(w, b, dtype)
    rest = w.make("Mod", [a, b], dtype, shape, fmod=1)
    lower = w.cast(_is_beyond(w, rest, b), dtype)
    if not dtype.is_floating_point:
        return w.make("Sub", [w.make("Div", [a, b], dtype, shape), lower], dtype, shape)
    # A quotient that is rounded may be the next whole number, as Python's divmod knows; a whole one is that up to rounding.
    whole = w.make("Div", [w.make("Sub", [a, rest], dtype, shape), b], dtype, shape)
    whole = w.make("Sub", [whole, lower], dtype, shape)
    floor = w.make("Floor", [whole], dtype, shape)
    above = w.make("Greater", [w.make("Sub", [whole, floor], dtype, shape), w.constant(0.5, dtype)], torch.bool, shape)
    floor = w.make("Add", [floor, w.cast(above, dtype)], dtype, shape)
    by_zero = w.make("Floor", [w.make("Div", [a, b], dtype, shape)], dtype, shape)
    is_by_zero = w.make("Equal", [b, w.constant(0, dtype)], torch.bool, b.shape)
    return w.cast(w.make("Where", [is_by_zero, by_zero, floor], dtype, shape), stated)


def _is_beyond(w, rest, b):
    """Where fmod's rest, which has the dividend's sign, is not the divisor's."""
    zero = w.constant(0, rest.dtype)
    some = w.make("Not", [w.make("Equal", [rest, zero], torch.bool, rest.shape)], torch.bool, rest.shape)
    signs = [w.make("Less", [v, zero], torch.bool, v.shape) for v in (rest, b)]
    return w.make("And", [some, w.make("Xor", signs, torch.bool, rest.shape)], torch.bool, rest.shape)


@register(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def pow(w, node, a, b):
    dtype, shape = result(node)
    if b == 2:
        a = w.cast(a, dtype)
        return w.make("Mul", [a, a], dtype, shape)
    if b == 1:
        return w.cast(a, dtype)
    if b == 0.5 and dtype.is_floating_point:
        return w.make("Sqrt", [w.cast(a, dtype)], dtype, shape)
    if b == -0.5 and dtype.is_floating_point:
        return rsqrt(w, node, a)
    return arithmetic(w, "Pow", node, a, b)


@register(aten.maximum.default)
def maximum(w, node, a, b):
    return arithmetic(w, "Max", node, a, b)


@register(aten.minimum.default)
def minimum(w, node, a, b):
    return arithmetic(w, "Min", node, a, b)


@register(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(w, node, a, b):
    dtype, shape = result(node)
    return w.make("Mod", [operand(w, a, dtype), operand(w, b, dtype)], dtype, shape, fmod=1)


@register(aten.remainder.Tensor, aten.remainder.Scalar)
def remainder(w, node, a, b):
    dtype, shape = result(node)
    a, b = operand(w, a, dtype), operand(w, b, dtype)
    if not dtype.is_floating_point:
        return w.make("Mod", [a, b], dtype, shape, fmod=0)
    rest = w.make("Mod", [a, b], dtype, shape, fmod=1)
    return w.make("Where", [_is_beyond(w, rest, b), w.make("Add", [rest, b], dtype, shape), rest], dtype, shape)


def _comparison(op_type, negated=False):
    def write(w, node, a, b):
        _, shape = result(node)
        dtype = common_dtype(a, b)
        if dtype == torch.bool and op_type != "Equal":
            dtype = torch.int32
        made = w.make(op_type, [operand(w, a, dtype), operand(w, b, dtype)], torch.bool, shape)
        return w.make("Not", [made], torch.bool, shape) if negated else made
    return write


for _packet, _op_type, _negated in ((aten.eq, "Equal", False), (aten.ne, "Equal", True), (aten.lt, "Less", False),
                                    (aten.le, "LessOrEqual", False), (aten.gt, "Greater", False),
                                    (aten.ge, "GreaterOrEqual", False)):
    for _overload in (_packet.Tensor, _packet.Scalar):
        TABLE[_overload] = _comparison(_op_type, _negated)


def _logical(op_type):
    def write(w, node, a, b):
        return w.make(op_type, [operand(w, a, torch.bool), operand(w, b, torch.bool)], *result(node))
    return write


def _bitwise(logical, bits):
    def write(w, node, a, b):
        dtype, shape = result(node)
        op_type = logical if dtype == torch.bool else bits
        return w.make(op_type, [operand(w, a, dtype), operand(w, b, dtype)], dtype, shape)
    return write


for _name, _logic, _bits in (("and", "And", "BitwiseAnd"), ("or", "Or", "BitwiseOr"), ("xor", "Xor", "BitwiseXor")):
    TABLE[getattr(aten, f"logical_{_name}").default] = _logical(_logic)
    for _overload in ("Tensor", "Scalar"):
        TABLE[getattr(getattr(aten, f"bitwise_{_name}"), _overload)] = _bitwise(_logic, _bits)


# --- choice --------------------------------------------------------------------------------------------------

@register(aten.where.self)
def where(w, node, condition, a, b):
    dtype, shape = result(node)
    return w.make("Where", [w.cast(condition, torch.bool), w.cast(a, dtype), w.cast(b, dtype)], dtype, shape)


@register(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(w, node, x, mask, value):
    dtype, shape = result(node)
    return w.make("Where", [mask, operand(w, value, dtype), x], dtype, shape)


# --- dtypes and copies ---------------------------------------------------------------------------------------

@register(aten._to_copy.default, torch.ops.prims.convert_element_type.default)
def to_copy(w, node, x, *options):
    dtype, shape = result(node)
    made = w.cast(x, dtype)
    if not x.dtype.is_floating_point or dtype not in (torch.int32, torch.int64) or node.meta["val"].device.type != "cpu":
        return made
    # ONNX leaves NaN open, and our Cast makes zeros of it.
    is_nan = w.make("IsNaN", [x], torch.bool, x.shape)
    return w.make("Where", [is_nan, w.constant(torch.iinfo(dtype).min, dtype), made], dtype, shape)


@register(aten.clone.default, aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default, aten.lift_fresh.default,
        aten.contiguous.default, torch.ops.prims.copy_strided.default)
def same(w, node, x, *options):
    return x


@register(aten.copy.default)
def copy(w, node, x, source, non_blocking):
    dtype, shape = result(node)
    return w.make("Expand", [w.cast(source, dtype), w.ints(shape)], dtype, shape)
