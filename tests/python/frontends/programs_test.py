# SPDX-License-Identifier: Apache-2.0
"""Random programs of autograd's states through wrap and compile_step (benchmarks/programs.py): some, or with CAESURA_LONG many."""

import os
import pathlib

import pytest
from fork_server import Program

torch = pytest.importorskip("torch")

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "benchmarks" / "programs.py"


def run(*options, timeout=20000):
    return Program(SCRIPT, *options).result(timeout)


def test_none_is_unlike_eager():
    seeds = "0:20000" if os.environ.get("CAESURA_LONG") else "1:9"
    done = run("--seeds", seeds, "--shrink", "0", "--jobs", "1")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


FAULTY = """
import torch

DTYPE = torch.float32
made = torch.randn
OPTIONS = {}


class Program(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3))

    def forward(self, x, y):
        return (self.w * x).sin() + float(torch.compiler.is_dynamo_compiling()),


def inputs(call):
    return torch.ones(2, 3), torch.ones(2, 3)


def before(module, optimizer, handles, call):
    pass


def after(ys, call):
    pass
"""


def test_a_difference_is_found(tmp_path):
    """A program that computes something else where it is captured."""
    (tmp_path / "faulty.py").write_text(FAULTY)
    done = run("--file", tmp_path / "faulty.py", timeout=300)
    assert done.returncode == 1
    assert "wrap: silent output 0 of call 0" in done.stdout and "step: silent the loss of step 0" in done.stdout, done.stdout


def test_only_elements_that_rounding_decides_are_left_out(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    from generators.program_runs import UNSETTLED, difference

    def found(w, others=((0.1, 0.5), (-0.1, 0.50000001))):
        values = [[("w", torch.tensor(v))] for v in (w, (0.1, 0.5), *others)]
        return difference(*values[:2], list, bool, lambda: values[2:])

    tiny = [[("w", torch.tensor(w)), ("exp_avg of w", torch.tensor([mean]))] for w, mean in (([0.1], 1e-8), ([-0.1], -1e-9))]
    assert difference(*tiny, list, bool, list) == UNSETTLED
    tiny[0][1][1].fill_(1e-3)
    assert "at [0]" in difference(*tiny, list, bool, list)
    assert found((0.1, 0.5)) is None
    assert found((-0.1, 0.5)) == UNSETTLED
    assert "at [1]" in found((0.1, -0.5)) and "at [0]" in found((-0.1, -0.5))
    assert "at [0]" in found((5.0, 0.5)) and "at [0]" in found((float("nan"), 0.5)) and "at [0]" in found((-0.1, 0.5), ())
