# SPDX-License-Identifier: Apache-2.0
"""TopK selects the same ones as PyTorch among equal elements."""

import copy

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import caesura  # noqa: E402
from compile_step_test import eager, fresh  # noqa: E402, F401


class TopK(torch.nn.Module):
    def __init__(self, *arguments):
        super().__init__()
        self.arguments = arguments

    def forward(self, x):
        return torch.topk(x, *self.arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape, k, axis", [((7, 8), 2, -1), ((5, 200), 3, -1), ((5, 200), 40, -1), ((4, 6, 5), 3, 1), ((6,), 1, 0),
                                            ((3, 1000), 15, -1), ((3, 1000), 16, -1), ((2, 10), 10, -1), ((3, 5), 0, 1)])
def test_ties(shape, k, axis, dtype):
    for largest in (True, False):
        for ordered in (True, False):
            module = caesura.wrap(TopK(k, axis, largest, ordered))
            for values in (1, 2, 3):
                x = torch.randint(0, values, shape).to(dtype)
                if dtype.is_floating_point and values == 3:
                    x[..., 0] = torch.nan
                with caesura.strict():
                    ours = module(x)
                theirs = torch.topk(x, k, axis, largest, ordered)
                assert torch.equal(ours.indices, theirs.indices)
                torch.testing.assert_close(ours.values, theirs.values, rtol=0, atol=0, equal_nan=True)


def test_a_router_whose_scores_are_equal():
    """All scores are equal, as in a mixture of experts at its first step."""
    class Routed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.router = torch.nn.Parameter(torch.zeros(8, 6))
            self.experts = torch.nn.Parameter(torch.randn(8, 6, 4))

        def forward(self, x):
            scores, chosen = torch.topk(F.softmax(x @ self.router.T, -1), 2, sorted=False)
            return torch.einsum("nk,nkio,ni->no", scores, self.experts[chosen], x)

    module = Routed()
    other = copy.deepcopy(module)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in (module, other)]
    data = [(torch.randn(16, 6), torch.randint(0, 4, (16,))) for _ in range(4)]
    expected = eager(module, optimizers[0], data)
    step = caesura.compile_step(other, F.cross_entropy, optimizers[1])
    assert [step(*batch).item() for batch in data] == pytest.approx(expected, rel=1e-5)
    for p, q in zip(module.parameters(), other.parameters()):
        torch.testing.assert_close(q, p, rtol=1e-4, atol=1e-6)
