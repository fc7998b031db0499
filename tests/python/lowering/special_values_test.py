# SPDX-License-Identifier: Apache-2.0
"""Elementwise functions and reductions have eager's values and gradients at NaN, infinities, signed zeros and kinks.

Both wrap and compile_step are tested."""

import math
import os

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import caesura  # noqa: E402

NUMBERS = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, 3.0, -3.0, 6.0, 0.25, 100.0, -100.0, 1e30,
           -1e30, 1e-30]
UNARY = {name: getattr(torch, name) for name in (
    "abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh sigmoid erf sign sgn floor ceil round trunc frac relu selu celu isnan isinf isfinite isposinf isneginf signbit "
    "logical_not nan_to_num sinc deg2rad positive").split()} | {
    name: getattr(F, name) for name in (
        "relu6 elu gelu silu mish hardtanh hardsigmoid hardswish softplus softsign logsigmoid leaky_relu tanhshrink hardshrink "
        "softshrink").split()} | {
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "threshold": lambda x: F.threshold(x, 0.5, 2.0),
    "clamp": lambda x: x.clamp(-1, 1), "clamp min": lambda x: x.clamp(min=0.5), "clamp max": lambda x: x.clamp(max=0.5),
    "clamp inf": lambda x: x.clamp(-math.inf, 1), "clamp nan": lambda x: x.clamp(max=math.nan),
    "x ** 2": lambda x: x ** 2, "x ** 3": lambda x: x ** 3, "x ** 0.5": lambda x: x ** 0.5, "x ** -1": lambda x: x ** -1,
    "x ** 0": lambda x: x ** 0, "2 ** x": lambda x: 2 ** x, "0 ** x": lambda x: torch.pow(0.0, x), "x ** 1.5": lambda x: x ** 1.5,
    "entr": torch.special.entr, "logit without bounds": lambda x: torch.logit(x + 0.0),  # at -0 eager's depends on the dtype
    "nan_to_num of one's own": lambda x: x.nan_to_num(3.0, 5.0, -5.0), "logit": lambda x: torch.logit(x, 1e-3),
    "where": lambda x: torch.where(x > 0, x, x * 2), "masked_fill": lambda x: x.masked_fill(x.isnan(), 0.0),
    "round to 1": lambda x: torch.round(x, decimals=1), "remainder 2": lambda x: x % 2, "floor_divide 2": lambda x: x // 2,
    "fmod 2": lambda x: torch.fmod(x, 2), "x == x": lambda x: x == x,
    "to int": lambda x: x.clamp(-1e30, 1e30).to(torch.int64), "to int32": lambda x: x.to(torch.int32),
}

# In vectors eager's code has other gradients for NaN than for an element by itself, whose gradient is ours at any place.
BY_PLACE = "relu6 hardtanh hardshrink softshrink elu selu celu hardswish".split()
UNARY |= {f"{name} of a NaN": lambda x, f=UNARY[name]: f(x[:1]) for name in [*BY_PLACE, "hardsigmoid"]}


def _divisor(x):
    return torch.where(x.abs() < 1e-3, x - x.detach(), x)


def probability(x):
    return torch.where((x >= 0) & (x <= 1), x, 0.5)


BINARY = {name: getattr(torch, name) for name in (
    "add sub mul div maximum minimum fmax fmin remainder fmod floor_divide pow atan2 hypot copysign heaviside xlogy logaddexp "
    "logaddexp2 eq ne lt le gt ge logical_and logical_or logical_xor").split()} | {
    "xlog1py": torch.special.xlog1py, "xlogy of itself": lambda a, b: torch.xlogy(b, b) + a,
    "kl_div": lambda a, b: F.kl_div(a, b, reduction="none"), "clamp to one number": lambda a, b: a.clamp(b, b),
    "clamp from a tensor": lambda a, b: a.clamp(min=b), "clamp to a tensor": lambda a, b: a.clamp(max=b),
    "binary cross entropy": lambda a, b: F.binary_cross_entropy(probability(a.detach()), probability(b), reduction="none"),
    "sgn of complex": lambda a, b: torch.view_as_real(torch.sgn(torch.complex(a.clamp(-9, 9).nan_to_num(), b.clamp(-9, 9)
                                                                              .nan_to_num()))),
    "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"), "clamp by tensors": lambda a, b: a.clamp(b, b + 1),
    "where": lambda a, b: torch.where(a < b, a, b), "lerp": lambda a, b: torch.lerp(a, b, 0.3), "isclose": lambda a, b: torch.isclose(a, b),
    "remainder of small": lambda a, b: torch.remainder(a.clamp(-6, 6), _divisor(b)),
    "fmod of small": lambda a, b: torch.fmod(a.clamp(-6, 6), _divisor(b)), "log of a sigmoid times": lambda a, b: F.logsigmoid(a) * b,
    "prelu": lambda a, b: torch.where(a > 0, a, a * b), "addcdiv": lambda a, b: torch.addcdiv(a, a, b), "huber": lambda a, b: F.huber_loss(
        a, b, reduction="none"), "smooth_l1": lambda a, b: F.smooth_l1_loss(a, b, reduction="none"), "l1": lambda a, b: F.l1_loss(
        a, b, reduction="none"), "mse": lambda a, b: F.mse_loss(a, b, reduction="none"),
}
ROWS = [[1.0, math.nan, 2.0, math.nan], [math.nan] * 4, [math.inf, 1.0, -math.inf, 0.0], [math.inf, math.inf, 1.0, 2.0],
        [-math.inf] * 4, [-math.inf, -math.inf, 1.0, 0.0], [-0.0, 0.0, -0.0, 0.0], [2.0, 2.0, 1.0, 2.0], [0.0, 3.0, 0.0, 2.0],
        [0.0] * 4, [math.nan, math.inf, 1.0, -math.inf], [1e30, 1e30, -1e30, 1e30], [-3.0, 5.0, 1.0, -3.0], [5.0, 1.0, 4.0, 2.0]]
REDUCTIONS = {name: (lambda x, f=getattr(torch, name): f(x, dim=1)) for name in (
    "sum mean prod amax amin var std logsumexp softmax log_softmax cumsum cumprod argmax argmin nansum nanmean all any cummax cummin "
    "median count_nonzero argsort").split()} | {
    # Without the row of 1e30, beside which eager's logarithms of gradients vanish.
    "logcumsumexp": lambda x: torch.cat([x[:11], x[12:]]).logcumsumexp(1),
    "max": lambda x: x.max(1), "min": lambda x: x.min(1), "aminmax": lambda x: torch.aminmax(x, dim=1), "sort": lambda x: x.sort(1),
    "topk": lambda x: x.topk(2, 1), "topk smallest": lambda x: x.topk(2, 1, largest=False), "norm": lambda x: x.norm(dim=1),
    "norm 1": lambda x: x.norm(p=1, dim=1), "norm inf": lambda x: x.norm(p=math.inf, dim=1), "norm 3": lambda x: x.norm(p=3, dim=1),
    "max pool": lambda x: F.max_pool1d(x, 2), "average pool": lambda x: F.avg_pool1d(x, 2), "normalize": lambda x: F.normalize(x, dim=1),
    "layer_norm": lambda x: F.layer_norm(x, (4,)), "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "adaptive max pool": lambda x: F.adaptive_max_pool1d(x, 3), "cosine": lambda x: F.cosine_similarity(x, x.flip(1)),
    "max of all with NaN": lambda x: x[:1].max(), "min of all with NaN": lambda x: x[:1].min(),
    "max of all with ties": lambda x: x[-7].max(),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x, torch.arange(len(ROWS)) % 4, reduction="none"),
    "multi_margin_loss of squares": lambda x: F.multi_margin_loss(x, torch.arange(len(ROWS)) % 4, p=2, reduction="none"),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(x, torch.tensor([[2, 0, -1, -1]] * len(ROWS)), reduction="none"),
    "renorm": lambda x: torch.renorm(x, 2, 0, 1.0), "sinc of denormals": lambda x: torch.sinc(x * torch.finfo(x.dtype).tiny / 4096),
    "amin of one": lambda x: torch.stack([v.amin() for v in x.flatten()[:12]]), "norm of one": lambda x: torch.stack(
        [torch.linalg.vector_norm(v) for v in x.flatten()[:12]]), "scatter_reduce amin": lambda x: torch.zeros(4, 4, dtype=x.dtype)
    .scatter_reduce(0, torch.arange(len(ROWS))[:, None].expand(-1, 4) // 4, x, "amin", include_self=False),
    "all of": lambda x: (x > 0).all(1), "max of all": lambda x: x[-1].max() * x[:, 0], "median of all": lambda x: x[-1].median() * x[:, 0],
}


def grid(count):
    """Returns all combinations of the numbers."""
    return [axis.flatten() for axis in torch.meshgrid(*[torch.tensor(NUMBERS, dtype=torch.float64)] * count, indexing="ij")]


CASES = {f"{kind} {name}": (f, given) for kind, functions, given in (
    ("unary", UNARY, grid(1)), ("binary", BINARY, grid(2)), ("of a row", REDUCTIONS, [torch.tensor(ROWS, dtype=torch.float64)]))
    for name, f in functions.items()}


# Cases without a comparison: eager's vector code and its code of single elements differ, or eager's answer is of no
# use. A route is named if only that route leaves the case out.
LEFT_OUT = {
    *(f"unary {name}" for name in BY_PLACE),
    "unary hardsigmoid",  # eager's factor is a float32 in float64 too
    "unary gelu",  # eager gives NaN at infinity
    "unary logit",  # the gradient at NaN depends on the dtype
    "unary floor_divide 2", "binary floor_divide", "binary heaviside",  # eager has no derivative
    "binary addcdiv",  # gradients for infinite and NaN operands
    "binary remainder", "binary fmod",  # 1e30 by 1e-30
    "of a row var", "of a row std", "of a row layer_norm",  # squares that overflow; gradients of infinities
    "of a row adaptive max pool",  # eager takes the last of several NaN
    "of a row max of all", "of a row median of all",  # a NaN gradient times zero
}


class Functions(torch.nn.Module):
    """Returns each function's result for its own copy of the numbers, and the sum of all results with a gradient.

    The parameters are zeros that keep the sign of a zero. A step of SGD turns them into the negative gradients."""

    def __init__(self, cases, dtype):
        super().__init__()
        self.cases, self.factors = cases, {}
        self.given = [[t.to(dtype) for t in given] for _, given in cases.values()]
        self.offsets = torch.nn.ParameterList(torch.full_like(t, -0.0) for given in self.given for t in given)

    def factor(self, y):
        """Numbers of the shape of y, all of them different. Made by the first call, which is eager's."""
        if y.shape not in self.factors:
            self.factors[y.shape] = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)
        return self.factors[y.shape]

    def forward(self):
        offsets, results, loss = iter(self.offsets), {}, 0.0
        for (name, (function, _)), given in zip(self.cases.items(), self.given):
            made = function(*(t + next(offsets) for t in given))
            for i, y in enumerate([made] if isinstance(made, torch.Tensor) else made):
                results[f"{name}, result {i}"] = y.detach()
                if y.requires_grad:
                    loss = loss + (y * self.factor(y)).sum()
        return {"loss": loss, "results": results}

    def named(self, tensors):
        """Returns the gradients of the offsets by case and operand."""
        names = [f"{name}, gradient {i}" for name, (_, given) in self.cases.items() for i in range(len(given))]
        return {name: t for name, t in zip(names, tensors, strict=True) if t is not None}


def differences(ours, theirs):
    """Lists the elements that differ, NaN and infinities included."""
    found = []
    for name, expected in theirs.items():
        tolerance = 1e-5 if expected.dtype == torch.float32 else 1e-10
        same = torch.isclose(ours[name].double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
        found += [f"{name} {i.tolist()}: {ours[name][tuple(i)].item()}, eager {expected[tuple(i)].item()}" for i in (~same).nonzero()]
    return found


def run(cases, dtype, route):
    """Lists the differences from eager, a line each."""
    torch._dynamo.reset()
    plain, tried = Functions(cases, dtype), Functions(cases, dtype)
    tried.factors = plain.factors
    expected = plain()
    expected["loss"].backward()
    gradients = plain.named([p.grad for p in plain.offsets])
    if route == "wrap":
        made = caesura.wrap(tried)()
        made["loss"].backward()
        return differences(made["results"], expected["results"]) + differences(tried.named([p.grad for p in tried.offsets]), gradients)
    caesura.compile_step(tried, None, torch.optim.SGD(tried.parameters(), lr=1.0))()
    return differences(tried.named([-p.detach() for p in tried.offsets]), gradients)


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
# Both routes lower a call alike, and kernels of both types are one template: CAESURA_LONG adds the other two pairs.
@pytest.mark.parametrize("route, dtype", [("wrap", torch.float32), ("compile_step", torch.float64)] +
                         [("wrap", torch.float64), ("compile_step", torch.float32)] * bool(os.environ.get("CAESURA_LONG")))
@pytest.mark.parametrize("kind", ["unary", "binary", "of a row"])
def test_as_eager(kind, dtype, route):
    cases = {name: case for name, case in CASES.items() if name.startswith(kind) and name not in LEFT_OUT}
    assert not run(cases, dtype, route)
