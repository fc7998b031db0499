# SPDX-License-Identifier: Apache-2.0
"""Lowers calls to ONNX ops so that our gradient rules give eager's gradients at kinks, at zeros and at large values.

PyTorch's derivatives.yaml is one formula a call; that of what a call is made of may be another at a bound, or infinity times
zero where a branch that is not taken overflows. So branches get harmless numbers where they are not taken.
"""

import functools
import math

import torch

from caesura.lowering.onnx_builder import DOMAIN, Tensor, positive
from caesura.lowering.ops.elementwise import operand, sign
from caesura.lowering.ops.indexing import broadcast_shape
from caesura.lowering.ops.reduction import reduce, sum_, var, var_mean
from caesura.lowering.registry import Refused, aten, register
from caesura.rewrites.fx_meta import result

# A call to its function (writer, node, *arguments): what a ForwardImporter takes before table.TABLE's. Where PyTorch makes the
# backward these calls are decomposed, or written otherwise.
CONVENTIONS = {}


def _conventional(*targets):
    def enter(function):
        CONVENTIONS.update(dict.fromkeys(targets, function))
        return function
    return enter


# Calls that get PyTorch's own derivative, traced, and how many of their first arguments have one: what our rules make of their
# ops is another gradient at special values. A ForwardImporter writes the call by CONVENTIONS or TABLE all the same.
_DERIVED = {
    aten.binary_cross_entropy.default: 2, aten.clamp.Tensor: 3, aten.clamp_max.Tensor: 2, aten.clamp_min.Tensor: 2,
    aten.fmod.Tensor: 2, aten.log_sigmoid_forward.default: 1, aten.logit.default: 1, aten.logsumexp.default: 1,
    aten.nansum.default: 1, aten.remainder.Tensor: 2, aten.special_entr.default: 1, aten.special_xlog1py.default: 2,
    aten.special_xlog1py.other_scalar: 2, aten.special_xlog1py.self_scalar: 2, aten.xlogy.Scalar_Other: 2,
    aten.xlogy.Scalar_Self: 2, aten.xlogy.Tensor: 2,
}


def derived(target, arguments) -> int:
    """How many of the first arguments PyTorch's own derivative is for; 0 where our rules differentiate the call."""
    if target in (aten.linalg_vector_norm.default, aten.amax.default, aten.amin.default) and arguments[0].meta["val"].dim() == 0:
        return 1  # its gradient is NaN for NaN; what we make of it is no reduction
    if target == aten.linalg_vector_norm.default:
        return int(arguments[1] in (math.inf, -math.inf))
    if target == aten.scatter_reduce.two:  # left out, self's elements do not share a gradient
        return 4 if arguments[4] in ("amax", "amin") and not arguments[5] else 0
    if target == aten.pow.Tensor_Scalar:
        return int(arguments[1] == 1.5)  # its derivative has a square root
    return _DERIVED.get(target, 0)


@_conventional(aten.detach.default)
def detach(w, node, x):
    return w.make("Detach", [x], x.dtype, x.shape, domain=DOMAIN)


class _Math:
    """Writes ops on elements in one dtype and shape; numbers become constants."""

    def __init__(self, w, dtype, shape):
        self.w, self.dtype, self.shape = w, dtype, tuple(shape)

    def op(self, op_type, *inputs, dtype=None, **attributes):
        inputs = [i if isinstance(i, Tensor) else self.w.constant(i, self.dtype) for i in inputs]
        return self.w.make(op_type, inputs, dtype or self.dtype, self.shape, **attributes)

    def test(self, op_type, *inputs):
        return self.op(op_type, *inputs, dtype=torch.bool)


def _math(w, node, *tensors):
    """A _Math for the call and its tensors, in float32 for halves as PyTorch computes them; and the call's own dtype."""
    dtype, shape = result(node)
    inner = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    return dtype, _Math(w, inner, shape), [operand(w, t, inner) for t in tensors]


# --- bounds --------------------------------------------------------------------------------------------------

@functools.cache
def _is_whole_at_bounds() -> bool:
    """True if PyTorch's clamp passes the whole gradient at a bound that is a number, as it did before 2.14. Since then it
    passes none. The node of autograd is called by itself, which starts no engine."""
    with torch.inference_mode(False), torch.enable_grad():
        at_bound = torch.zeros((), device="cpu", requires_grad=True).clamp(min=0)
    return at_bound.grad_fn(torch.ones((), device="cpu")).item() == 1


@register(aten.clamp.default, aten.clamp.Tensor)
def clamp(w, node, x, low, high):
    """The whole gradient at a bound."""
    dtype, shape = result(node)
    x = w.cast(x, dtype)
    bounds = [bound if bound is None else operand(w, bound, dtype) for bound in (low, high)]
    if not any(isinstance(bound, Tensor) or bound != bound for bound in (low, high)):
        return w.make("Clip", [x, *bounds], dtype, shape)
    m = _Math(w, dtype, shape)
    for bound, beyond in zip(bounds, ("Less", "Greater")):
        if bound is not None:
            outside = m.test(beyond, x, bound)
            if dtype.is_floating_point:  # a bound that is NaN makes NaN
                outside = m.test("Or", outside, w.make("IsNaN", [bound], torch.bool, bound.shape))
            x = m.op("Where", outside, bound, x)
    return x


@register(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(w, node, x, low):
    return clamp(w, node, x, low, None)


@register(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(w, node, x, high):
    return clamp(w, node, x, None, high)


@_conventional(aten.clamp.default)
def clamp_with_gradient(w, node, x, low, high):
    """The gradient at a bound that the installed PyTorch has."""
    dtype, shape = result(node)
    if _is_whole_at_bounds() or not dtype.is_floating_point or low != low or high != high:
        return clamp(w, node, x, low, high)
    x, m = w.cast(x, dtype), _Math(w, dtype, shape)
    x = m.op("Where", m.test("IsNaN", x), math.nan, x)  # no gradient here either
    for bound, beyond in ((low, "LessOrEqual"), (high, "GreaterOrEqual")):
        if bound is not None:
            x = m.op("Where", m.test(beyond, x, bound), bound, x)
    return x


@_conventional(aten.clamp_min.default)
def clamp_min_with_gradient(w, node, x, low):
    return clamp_with_gradient(w, node, x, low, None)


@_conventional(aten.clamp_max.default)
def clamp_max_with_gradient(w, node, x, high):
    return clamp_with_gradient(w, node, x, None, high)


def _within(m, x, low, high, inside, below, above):
    """No gradient at the bounds."""
    inside = m.op("Where", m.test("GreaterOrEqual", x, high), above, inside)
    return m.op("Where", m.test("LessOrEqual", x, low), below, inside)


@register(aten.hardtanh.default)
def hardtanh(w, node, x, low, high):
    dtype, shape = result(node)
    return _within(_Math(w, dtype, shape), w.cast(x, dtype), low, high, x, low, high)


@_conventional(aten.hardsigmoid.default)
def hardsigmoid(w, node, x):
    dtype, m, (x,) = _math(w, node, x)
    x = m.op("Where", m.test("IsNaN", x), math.nan, x)  # no gradient here
    return w.cast(_within(m, x, -3, 3, m.op("Div", m.op("Add", x, 3), 6), 0, 1), dtype)


@_conventional(aten.hardswish.default)
def hardswish(w, node, x):
    return w.make("HardSwish", [x], *result(node))


# --- exponentials --------------------------------------------------------------------------------------------

@_conventional(aten.softplus.default)
def softplus(w, node, x, beta, threshold):
    dtype, m, (x,) = _math(w, node, x)
    scaled = x if beta == 1 else m.op("Mul", x, beta)
    y = m.op("Softplus", scaled)
    y = y if beta == 1 else m.op("Div", y, beta)
    return w.cast(m.op("Where", m.test("Greater", scaled, threshold), x, y), dtype)


@_conventional(aten.mish.default)
def mish(w, node, x):
    return w.make("Mish", [x], *result(node))


@_conventional(aten.log_sigmoid_forward.default)
def log_sigmoid(w, node, x):
    dtype, shape = result(node, 0)
    m = _Math(w, torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype, shape)
    x = w.cast(x, m.dtype)
    e = m.op("Exp", m.op("Neg", m.op("Abs", x)))
    return tuple(w.cast(t, dtype) for t in (m.op("Sub", m.op("Min", x, 0), _log1p(m, e)), e))


@register(aten.elu.default)
def elu(w, node, x, alpha, scale, input_scale):
    dtype, m, (x,) = _math(w, node, x)
    if alpha == scale == input_scale == 1:
        return w.cast(m.op("Elu", x), dtype)
    curved = m.op("Elu", x if input_scale == 1 else m.op("Mul", x, input_scale))
    curved = m.op("Mul", curved, alpha * scale)
    return w.cast(m.op("Where", m.test("LessOrEqual", x, 0), curved, x if scale == 1 else m.op("Mul", x, scale)), dtype)


@_conventional(aten.celu.default)
def celu(w, node, x, alpha):
    return elu(w, node, x, alpha, 1, 1 / alpha)


@register(aten.expm1.default)
def expm1(w, node, x):
    """2 t / (1 - t) with t = tanh(x / 2) where e^x - 1 would be rounded."""
    dtype, m, (x,) = _math(w, node, x)
    far = m.test("Greater", m.op("Abs", x), 1)
    t = m.op("Tanh", m.op("Mul", m.op("Where", far, 0, x), 0.5))
    near = m.op("Div", m.op("Add", t, t), m.op("Sub", 1, t))
    return w.cast(m.op("Where", far, m.op("Sub", m.op("Exp", x), 1), near), dtype)


def _log1p(m, x):
    """Near zero log(u) x / (u - 1) with u = 1 + x: what rounding takes from u stands in both factors (Goldberg 1991, theorem 4)."""
    far = m.test("GreaterOrEqual", m.op("Abs", x), 0.5)
    near = m.op("Where", far, 0, x)
    u = m.op("Add", near, 1)
    exact = m.test("Equal", u, 1)
    product = m.op("Mul", m.op("Log", u), m.op("Div", near, m.op("Where", exact, 1, m.op("Sub", u, 1))))
    plain = m.op("Log", m.op("Where", far, m.op("Add", x, 1), 1))
    return m.op("Where", far, plain, m.op("Where", exact, near, product))


@register(aten.log1p.default)
def log1p(w, node, x):
    dtype, m, (x,) = _math(w, node, x)
    return w.cast(_log1p(m, x), dtype)


# --- distances -----------------------------------------------------------------------------------------------

def _reduced(w, each, reduction, dtype):
    if reduction:
        each = reduce(w, "ReduceMean" if reduction == 1 else "ReduceSum", each, list(range(each.rank)), False, each.dtype, ())
    return w.cast(each, dtype)


def _bent(w, node, x, target, reduction, knee, square, line):
    """square(m, d) of distances d below the knee, and of NaN; line(m, |d|) of others."""
    dtype, _ = result(node)
    inner = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    m = _Math(w, inner, broadcast_shape([x, target]))
    distance = m.op("Sub", w.cast(x, inner), w.cast(target, inner))
    far = m.test("GreaterOrEqual", m.op("Abs", distance), knee)
    near = square(m, m.op("Where", far, 0, distance))
    return _reduced(w, m.op("Where", far, line(m, m.op("Abs", distance)), near), reduction, dtype)


@_conventional(aten.huber_loss.default)
def huber_loss(w, node, x, target, reduction, delta):
    return _bent(w, node, x, target, reduction, delta, lambda m, d: m.op("Mul", m.op("Mul", d, d), 0.5),
                 lambda m, d: m.op("Mul", m.op("Sub", d, 0.5 * delta), delta))


@_conventional(aten.smooth_l1_loss.default)
def smooth_l1_loss(w, node, x, target, reduction, beta):
    return _bent(w, node, x, target, reduction, beta,
                 lambda m, d: m.op("Mul", m.op("Mul", d, d), 0.5 / beta if beta else 0), lambda m, d: m.op("Sub", d, 0.5 * beta))


# --- zeros ---------------------------------------------------------------------------------------------------

@_conventional(aten.sinc.default, aten.special_sinc.default)
def sinc(w, node, x):
    dtype, m, (x,) = _math(w, node, x)
    zero = m.test("Equal", m.op("Mul", x, x), 0)  # of a denormal too: its inverse is infinite
    angle = m.op("Mul", m.op("Where", zero, 1, x), math.pi)
    return w.cast(m.op("Where", zero, 1, m.op("Div", m.op("Sin", angle), angle)), dtype)


def _times_log(w, node, x, y, log, nothing):
    """x log(y), and 0 for x = 0 unless y is NaN."""
    dtype, m, (x, y) = _math(w, node, x, y)
    x = x if x.rank else m.op("Expand", x, w.ints(m.shape))
    no_log = m.test("Or", m.test("LessOrEqual", y, nothing), m.test("Equal", y, math.inf))
    none = m.test("And", m.test("Equal", x, 0), no_log)
    return w.cast(m.op("Mul", x, log(m, m.op("Where", none, nothing + 1, y))), dtype)


@_conventional(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)
def xlogy(w, node, x, y):
    return _times_log(w, node, x, y, lambda m, v: m.op("Log", v), 0)


@_conventional(aten.special_xlog1py.default, aten.special_xlog1py.self_scalar, aten.special_xlog1py.other_scalar)
def xlog1py(w, node, x, y):
    return _times_log(w, node, x, y, _log1p, -1)


@_conventional(aten.special_entr.default)
def entr(w, node, x):
    dtype, m, (x,) = _math(w, node, x)
    y = m.op("Neg", m.op("Mul", x, m.op("Log", x)))
    return w.cast(m.op("Where", m.test("Less", x, 0), -math.inf, m.op("Where", m.test("Equal", x, 0), 0, y)), dtype)


@_conventional(aten.logit.default)
def logit(w, node, x, epsilon):
    dtype, m, (x,) = _math(w, node, x)
    if epsilon is not None:
        x = m.op("Where", m.test("Less", x, epsilon), epsilon, m.op("Where", m.test("Greater", x, 1 - epsilon), 1 - epsilon, x))
    return w.cast(m.op("Log", m.op("Div", x, m.op("Sub", 1, x))), dtype)


@_conventional(aten.sgn.default)
def sgn(w, node, x):
    return sign(w, node, x)


@_conventional(aten.nansum.default)
def nansum(w, node, x, axes, keepdim, *options):
    if x.dtype.is_floating_point:
        m = _Math(w, x.dtype, x.shape)
        x = m.op("Where", m.test("IsNaN", x), 0, x)
    return sum_(w, node, x, axes, keepdim)


def _root(w, variance):
    """The square root, with no gradient at zero."""
    m = _Math(w, variance.dtype, variance.shape)
    zero = m.test("Equal", variance, 0)
    return m.op("Where", zero, 0, m.op("Sqrt", m.op("Where", zero, 1, variance)))


@_conventional(aten.std.correction)
def std(w, node, x, axes, correction, keepdim):
    return _root(w, var(w, node, x, axes, correction, keepdim))


@_conventional(aten.std_mean.correction)
def std_mean(w, node, x, axes, correction, keepdim):
    variance, mean = var_mean(w, node, x, axes, correction, keepdim)
    return _root(w, variance), mean


# --- choices -------------------------------------------------------------------------------------------------

@_conventional(aten.max.default, aten.min.default)
def extreme(w, node, x):
    """NaNs share the gradient, as ties do. Those of amax do not."""
    dtype, shape = result(node)
    op_type, least = ("ReduceMax", -math.inf) if node.target == aten.max.default else ("ReduceMin", math.inf)

    def over_all(reduction, value):
        return reduce(w, reduction, value, list(range(x.rank)), False, dtype, shape)

    if not dtype.is_floating_point:
        return over_all(op_type, x)
    m = _Math(w, dtype, x.shape)
    is_nan = m.test("IsNaN", x)
    count = over_all("ReduceSum", w.cast(is_nan, dtype))
    nans = w.make("Div", [over_all("ReduceSum", m.op("Where", is_nan, x, 0)), count], dtype, shape)
    some = w.make("Greater", [count, w.constant(0, dtype)], torch.bool, shape)
    return w.make("Where", [some, nans, over_all(op_type, m.op("Where", is_nan, least, x))], dtype, shape)


@_conventional(aten.max.dim, aten.min.dim)
def max_dim(w, node, x, axis, keepdim):
    """The element that the index tells takes the gradient: ties do not share it, as those of amax do."""
    if x.rank == 0:
        raise Refused("an extreme of a scalar along an axis")
    dtype, shape = result(node, 0)
    op_type = "ArgMax" if node.target == aten.max.dim else "ArgMin"
    kept = tuple(1 if d == positive(axis, x.rank) else size for d, size in enumerate(x.shape))
    ordered = w.cast(x, torch.uint8) if dtype == torch.bool else x
    places = w.make(op_type, [ordered], torch.int64, kept, axis=axis, keepdims=1)
    values = w.make("GatherElements", [x, places], dtype, kept, axis=axis)
    if keepdim:
        return values, places
    return tuple(w.make("Squeeze", [t, w.constant([axis])], t.dtype, shape) for t in (values, places))


# --- losses --------------------------------------------------------------------------------------------------

@_conventional(aten.binary_cross_entropy.default)
def binary_cross_entropy(w, node, p, target, weight, reduction):
    """Logarithms are -100 or more."""
    dtype, _ = result(node)
    inner = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    m = _Math(w, inner, p.shape)
    p, target = w.cast(p, inner), w.cast(target, inner)
    log, log_of_rest = (m.op("Clip", x, -100) for x in (m.op("Log", p), _log1p(m, m.op("Neg", p))))
    each = m.op("Sub", m.op("Mul", m.op("Sub", target, 1), log_of_rest), m.op("Mul", target, log))
    if weight is not None:
        each = m.op("Mul", each, w.cast(weight, inner))
    return _reduced(w, each, reduction, dtype)
