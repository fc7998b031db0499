# SPDX-License-Identifier: Apache-2.0
"""Contractions by opt_einsum are captured whole (caesura/capture/contractions.py)."""

import copy
import sys
import types

import pytest

torch = pytest.importorskip("torch")
opt_einsum = pytest.importorskip("opt_einsum")

import caesura  # noqa: E402


def use_opt_einsum(optimize):
    """tensorly's plugin, in short."""
    import opt_einsum as oe

    paths = {}

    def cached_einsum(equation, *args):
        shapes = [tuple(arg.shape) for arg in args]
        key = equation + str(shapes)
        if key not in paths:
            paths[key] = oe.contract_expression(equation, *shapes, optimize=optimize)
        return paths[key](*args)

    return cached_einsum


class Backend:
    einsum = staticmethod(use_opt_einsum("optimal"))


backend = Backend()
ready = opt_einsum.contract_expression("bxr,ro->box", (3, 5, 2), (2, 4))


class Factors(torch.nn.Module):
    """A weight of factors, as tensorly's layers have it."""

    def __init__(self, contract):
        super().__init__()
        self.contract = contract
        self.factors = torch.nn.ParameterList(torch.randn(n, 2, dtype=torch.float64) for n in (6, 4, 5))

    def forward(self, x):
        return self.contract(x, *self.factors).tanh()


CONTRACTIONS = {
    "contract": lambda x, *factors: opt_einsum.contract("bix,ir,or,xr->bo", x, *factors),
    "a path": lambda x, *factors: opt_einsum.contract("bix,ir,or,xr->bo", x, *factors, optimize=[(0, 1), (1, 2), (0, 1)]),
    "expression": lambda x, a, b, c: ready(opt_einsum.contract("bix,ir->bxr", x, a), b.T),
    "tensorly": lambda x, *factors: backend.einsum("bix,ir,or,xr->bo", x, *factors),
}


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions(name, monkeypatch):
    manager = types.SimpleNamespace(current_backend=lambda: backend)
    monkeypatch.setitem(sys.modules, "tensorly.backend", types.SimpleNamespace(BackendManager=manager))
    torch._dynamo.reset()
    module = Factors(CONTRACTIONS[name])
    wrapped = caesura.wrap(copy.deepcopy(module))
    with caesura.strict():  # a graph break is an error
        for batch in (3, 7):
            x = torch.randn(batch, 6, 5, dtype=torch.float64)
            results = [m(x) for m in (module, wrapped)]
            torch.testing.assert_close(results[1], results[0])
            for result in results:
                result.square().sum().backward()
    for expected, actual in zip(module.parameters(), wrapped.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad)
