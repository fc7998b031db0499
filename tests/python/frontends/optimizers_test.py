# SPDX-License-Identifier: Apache-2.0
"""Compiled steps agree with eager for PyTorch's table of optimizer configurations (benchmarks/optimizers.py).

The short test runs float32; CAESURA_LONG runs all dtypes and uses."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")


def test_all_agree_in_our_step():
    script = pathlib.Path(__file__).resolve().parents[3] / "benchmarks" / "optimizers.py"
    some = [] if os.environ.get("CAESURA_LONG") else ["--dtypes", "float32", "--uses", "OneCycleLR"]
    done = subprocess.run([sys.executable, str(script), *some], capture_output=True, text=True, check=False)
    told = done.stdout[-4000:] + done.stderr[-2000:]
    assert done.returncode == 0, told
    # Optimizers that evaluate the loss several times, or take sparse gradients, are refused.
    refused = {line.split("(")[0] for line in done.stdout.splitlines() if line.startswith("refused: ")}
    assert refused == {"refused: LBFGS", "refused: SparseAdam"}, told
    assert re.findall(r"(\d+) left to PyTorch", done.stdout) == ["0", "0"], told
    assert re.findall(r"(\d+) fail in eager", done.stdout) == ["0", "0"], told
