# SPDX-License-Identifier: Apache-2.0
"""Compiled steps agree with eager for PyTorch's table of optimizer configurations (benchmarks/optimizers.py).

The short test runs float32; CAESURA_LONG runs all dtypes and uses."""

import copy
import os
import pathlib
import re

import pytest
from fork_server import Program

torch = pytest.importorskip("torch")

import caesura  # noqa: E402


def test_all_agree_in_our_step():
    script = pathlib.Path(__file__).resolve().parents[3] / "benchmarks" / "optimizers.py"
    some = [] if os.environ.get("CAESURA_LONG") else ["--dtypes", "float32", "--uses", "OneCycleLR"]
    done = Program(script, *some).result(timeout=20000)
    told = done.stdout[-4000:] + done.stderr[-2000:]
    assert done.returncode == 0, told
    # Optimizers that evaluate the loss several times, or take sparse gradients, are refused.
    refused = {line.split("(")[0] for line in done.stdout.splitlines() if line.startswith("refused: ")}
    assert refused == {"refused: LBFGS", "refused: SparseAdam"}, told
    assert re.findall(r"(\d+) left to PyTorch", done.stdout) == ["0", "0"], told
    assert re.findall(r"(\d+) fail in eager", done.stdout) == ["0", "0"], told


def muons_step(rows, columns, rule, lr):
    """Returns what a step of Muon adds to a matrix. PyTorch's constructor knows all of the rules since 2.14 only."""
    torch.manual_seed(0)
    module = torch.nn.Linear(columns, rows, bias=False)
    before = module.weight.detach().clone()
    optimizer = torch.optim.Muon(module.parameters(), lr=lr, weight_decay=0.0)
    optimizer.param_groups[0]["adjust_lr_fn"] = rule
    caesura.compile_step(module, torch.nn.functional.mse_loss, optimizer)(torch.ones(4, columns), torch.ones(4, rows))
    return module.weight.detach() - before


@pytest.mark.parametrize("sides", [(4, 9), (6, 6), (9, 4)])
def test_muon_by_unclamped_sides(sides):
    rows, columns = sides
    expected = muons_step(rows, columns, "original", 0.01 * min(1, rows / columns) ** 0.5)
    torch.testing.assert_close(muons_step(rows, columns, "spectral_unclamped", 0.01), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")  # before PyTorch 2.15, which overwrites the momentum
def test_muons_momentum_in_bfloat16_is_the_installed_ones():
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 3, bias=False).bfloat16()
    other, x = copy.deepcopy(module), torch.randn(8, 4).bfloat16()
    first, second = (torch.optim.Muon(m.parameters(), lr=0.1, nesterov=False) for m in (module, other))
    step = caesura.compile_step(other, torch.nn.functional.mse_loss, second)
    for _ in range(3):
        torch.nn.functional.mse_loss(module(x), torch.ones(8, 3).bfloat16()).backward()
        first.step()
        first.zero_grad()
        step(x, torch.ones(8, 3).bfloat16())
    # PyTorch rounds each product of the update to bfloat16, and ours are of float32.
    torch.testing.assert_close(other.weight, module.weight, rtol=0, atol=0.01)
