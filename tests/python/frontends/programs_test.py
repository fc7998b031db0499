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
    (tmp_path / "faulty.py").write_text("import torch\n\nDTYPE = torch.float32\n" + FAULTY)
    done = run("--file", tmp_path / "faulty.py", timeout=300)
    assert done.returncode == 1
    assert "wrap: silent output 0 of call 0" in done.stdout and "step: silent the loss of step 0" in done.stdout, done.stdout


def test_only_elements_that_adam_moves_by_rounding_are_left_out(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    from generators.program_runs import UNSETTLED, difference

    def values(w, loss):
        return [("w after step 0", torch.tensor(w)), ("exp_avg of w after step 0", torch.tensor([1e-9, 0.5])), ("the loss of step 1", loss)]

    exact = [(name, value.double()) for name, value in values([0.1, 0.1], torch.tensor(1.0))]
    exact[1][1][0] = -1e-17
    expected = values([0.1, 0.1], torch.tensor(1.0))
    assert difference(values([-0.1, 0.1], torch.tensor(1.0)), expected, lambda: exact, bool) is None
    assert difference(values([-0.1, 0.1], torch.tensor(2.0)), expected, lambda: exact, bool) == UNSETTLED
    assert "at [1]" in difference(values([-0.1, -0.1], torch.tensor(2.0)), expected, lambda: exact, bool)
    assert "the loss" in difference(values([0.1, 0.1], torch.tensor(2.0)), expected, lambda: exact, bool)
