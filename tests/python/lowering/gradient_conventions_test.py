# SPDX-License-Identifier: Apache-2.0
"""Compiled steps have eager's gradients at kinks, at zeros and far from zero, as one step of SGD shows."""

import copy
import math

import onnx
import pytest

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

import caesura  # noqa: E402

T = torch.tensor
KNEES, FAR = [-3.0, -1.0, 0.0, 1.0, 3.0, 6.0], [-200.0, -90.0, -1.0, 0.0, 1.0, 100.0]
ROWS = [[1.0, 1.0, 0.0], [2.0, 2.0, 2.0], [-1.0, 0.0, 0.0]]


def _log_prob(make, value):
    return lambda p: make(p).log_prob(T(value))


D = torch.distributions
# Name to (function of the parameter, values of the parameter).
CASES = {
    "clamp": (lambda p: p.clamp(-1, 1), KNEES),
    "clamp_min": (lambda p: p.clamp(min=0.0), KNEES),
    "clamp_max": (lambda p: p.clamp(max=1.0), KNEES),
    "clamp_by_tensors": (lambda p: torch.clamp(p, T(KNEES), T(KNEES).clamp(min=1)), KNEES),
    "clamp_its_bounds": (lambda p: torch.clamp(T([0.0, 2.0, 0.0, 1.0, 7.0, 3.0]), p - 1, p), KNEES),
    "clamp_min_by_tensor": (lambda p: torch.clamp(p, min=T([-3.0, 0.0, 0.0, 2.0, math.inf, -math.inf])), KNEES),
    "clamp_max_by_tensor": (lambda p: torch.clamp(p, max=T([-3.0, 0.0, 0.0, 2.0, math.inf, -math.inf])), KNEES),
    "clamp_by_one_bound": (lambda p: torch.clamp(p.expand(2, 6), T([[-1.0], [0.0]]), T(1.0)), KNEES),
    "clamp_min_its_bound": (lambda p: torch.clamp_min(T(KNEES[::-1]), p) * T(KNEES).clamp_max(p.roll(1)),
                            [1.0, 3.0, 1.0, 0.0, -1.0, -3.0]),
    "clamp_equal": (lambda p: p.clamp(1, 1), KNEES), "clip_to_ints": (lambda p: p.clip(-1, 3), KNEES),
    "clamp_in_place": (lambda p: (p * 1).clamp_(-1, 1), KNEES), "clamp_to_infinity": (lambda p: p.clamp(-math.inf, math.inf), KNEES),
    "maximum": (lambda p: torch.maximum(p, T(KNEES[::-1])) + torch.maximum(T(KNEES), p), KNEES),
    "minimum": (lambda p: torch.minimum(p, T(KNEES[::-1])) + torch.minimum(T(KNEES), p), KNEES),
    "fmax": (lambda p: torch.fmax(p, T(KNEES[::-1])) + torch.fmax(T(KNEES), p), KNEES),
    "fmin": (lambda p: torch.fmin(p, T(KNEES[::-1])) + torch.fmin(T(KNEES), p), KNEES),
    "relu": (F.relu, KNEES), "threshold": (lambda p: F.threshold(p, 1.0, 0.0), KNEES), "leaky_relu": (F.leaky_relu, KNEES),
    "softshrink": (lambda p: F.softshrink(p, 1.0), KNEES), "hardshrink": (lambda p: F.hardshrink(p, 1.0), KNEES),
    "abs": (torch.abs, KNEES),
    "hardtanh": (F.hardtanh, KNEES), "relu6": (F.relu6, KNEES), "hardsigmoid": (F.hardsigmoid, KNEES),
    "hardswish": (F.hardswish, KNEES),
    "softplus": (F.softplus, FAR), "softplus_beta": (lambda p: F.softplus(p, 5.0, 10.0), [*FAR, 2.0, 1.9]),
    "log_of_softplus": (lambda p: F.softplus(p).log(), [-80.0, -20.0, 100.0]),
    "mish": (F.mish, FAR),
    "celu": (lambda p: F.celu(p, 0.5), FAR),
    "expm1": (torch.expm1, [-200.0, -90.0, -1.0, -1e-7, 0.0, 1e-7, 1.0, 2.0]),
    "sinc": (torch.sinc, [0.0, 1.0, 0.5]),
    "bce": (lambda p: F.binary_cross_entropy(p, T([0.5, 0.0, 1.0, 0.0, 0.3])), [0.0, 0.0, 1.0, 1.0, 0.5]),
    "bce_saturated": (lambda p: F.binary_cross_entropy(torch.sigmoid(p), T([1.0, 0.0, 1.0, 0.3, 1.0])),
                      [-200.0, 200.0, 200.0, -200.0, -40.0]),
    "bce_weighted": (lambda p: F.binary_cross_entropy(p, T([0.5, 0.0]), T([2.0, 3.0]), reduction="none"), [0.0, 0.25]),
    "xlogy": (lambda p: torch.xlogy(p, T([0.5, 0.5, 2.0, 0.0])), [0.0, 1.0, 0.0, 0.0]),
    "xlog1py": (lambda p: torch.special.xlog1py(p, T([0.5, 0.5, 2.0, -1.0])), [0.0, 1.0, 0.0, 0.0]),
    "beta": (_log_prob(lambda p: D.Beta(p, T([2.0]), validate_args=False), [0.5]), [1.0]),
    "gamma": (_log_prob(lambda p: D.Gamma(p, T([2.0]), validate_args=False), [0.5]), [1.0]),
    "dirichlet": (_log_prob(lambda p: D.Dirichlet(p, validate_args=False), [0.2, 0.3, 0.5]), [1.0, 1.0, 1.0]),
    "std": (lambda p: p.std(), [2.0, 2.0]), "std_of_rows": (lambda p: p.std(1), ROWS),
    "std_mean": (lambda p: torch.stack(torch.std_mean(p, 1)), ROWS),
    "max_along": (lambda p: p.max(1)[0], ROWS), "min_along": (lambda p: p.min(-1, keepdim=True)[0], ROWS),
    "logsumexp": (lambda p: torch.where(p > 2, math.inf, p).logsumexp(0), KNEES),
    "hinge": (lambda p: F.hinge_embedding_loss(p, T([1.0, -1.0] * 3)), KNEES),
    "fmax_of_nan": (lambda p: torch.fmax(p, T(KNEES)) + torch.fmax(T([math.nan] * 3 + KNEES[:3]), p), [math.nan, *KNEES[1:]]),
    "fmin_of_nan": (lambda p: torch.fmin(p, T(KNEES)) + torch.fmin(T([math.nan] * 3 + KNEES[:3]), p), [math.nan, *KNEES[1:]]),
    "ldexp_by_ints": (lambda p: torch.ldexp(p, T([-3, -1, 0, 1, 3, 90])), KNEES),
    "margin_ranking": (lambda p: F.margin_ranking_loss(p, p - 1, T([1.0, -1.0] * 3), margin=1.0), KNEES),
}
# Cases whose gradients PyTorch 2.14 or 2.15 has changed.
CHANGED = ["clamp", "clamp_by_tensors", "clamp_min_by_tensor", "fmax", "fmin", "fmax_of_nan", "fmin_of_nan", "hinge", "ldexp_by_ints",
           "margin_ranking"]
# Functions that use the ops of the cases above, without such a point of their own.
MORE = {
    "clamp_crossed": (lambda p: p.clamp(1, -1), KNEES), "selu": (F.selu, FAR), "elu": (lambda p: F.elu(p, 2.0), FAR),
    "bce_by_target": (lambda p: F.binary_cross_entropy(T([0.25, 0.5]), p, reduction="sum"), [0.0, 1.0]),
    "product_with_zeros": (lambda p: p.prod() * math.nan, [0.0, 2.0, 0.0, math.inf]),
    "product_along_with_zeros": (lambda p: p.prod(0) * math.nan, [0.0, 2.0, 0.0, 3.0]),
    "xlogy_of_numbers": (lambda p: torch.xlogy(2.0, p) + torch.xlogy(p, 3.0), [1.0, 2.0]),
    "max_and_index": (lambda p: torch.stack([t.float() for t in p.max(0)]), ROWS),
}


class Module(nn.Module):
    def __init__(self, function, value, dtype):
        super().__init__()
        self.function, self.parameter = function, nn.Parameter(T(value, dtype=dtype))

    def forward(self, weights):
        y = self.function(self.parameter)
        return (y * weights[:y.numel()].view(y.shape)).sum()


def steps(function, value, dtype, **options):
    """Returns the parameter after eager's step, the parameter after ours, and our step."""
    torch._dynamo.reset()
    module, weights = Module(function, value, dtype), torch.arange(1.0, 13.0).to(dtype)
    other = copy.deepcopy(module)
    first, second = (torch.optim.SGD(m.parameters(), lr=0.5) for m in (module, other))
    expected = module(weights)
    expected.backward()
    first.step()
    step = caesura.compile_step(other, None, second, **options)
    torch.testing.assert_close(step(weights), expected.detach(), rtol=1e-5, atol=1e-5, equal_nan=True)
    return module.parameter.detach(), other.parameter.detach(), step, weights


@pytest.mark.parametrize("name", CASES | MORE)
def test_as_eager(name):
    expected, found, _, _ = steps(*(CASES | MORE)[name], torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", CHANGED)
def test_wrapped_as_eager(name):
    torch._dynamo.reset()
    module = Module(*CASES[name], torch.float32)
    other, weights = copy.deepcopy(module), torch.arange(1.0, 13.0)
    module(weights).backward()
    caesura.wrap(other)(weights).backward()
    torch.testing.assert_close(other.parameter.grad, module.parameter.grad, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", ["clamp", "softplus", "selu", "expm1", "sinc", "std_of_rows", "elu"])
def test_as_eager_in_double(name):
    expected, found, _, _ = steps(*(CASES | MORE)[name], torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["clamp", "relu6", "hardswish", "hardsigmoid", "softplus_beta",
                                  "celu", "expm1", "sinc", "std", "max_along"])
def test_exported_in_standard_ops(name, tmp_path):
    _, _, step, weights = steps(*CASES[name], torch.float32)
    step.export(tmp_path / "step", weights)
    model = onnx.load(tmp_path / "step" / "model.onnx")
    assert {node.domain for node in model.graph.node} == {""}
