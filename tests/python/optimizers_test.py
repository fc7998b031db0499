# SPDX-License-Identifier: Apache-2.0
"""PyTorch's table of optimizer configurations in a compiled step (benchmarks/optimizers.py): in float32, or with CAESURA_LONG
in all ways."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")


def test_all_agree_in_our_step():
    script = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "optimizers.py"
    some = [] if os.environ.get("CAESURA_LONG") else ["--dtypes", "float32", "--uses", "OneCycleLR"]
    done = subprocess.run([sys.executable, str(script), *some], capture_output=True, text=True, check=False)
    told = done.stdout[-4000:] + done.stderr[-2000:]
    assert done.returncode == 0, told
    # What evaluates its loss several times, or takes sparse gradients, is refused.
    refused = {line.split("(")[0] for line in done.stdout.splitlines() if line.startswith("refused: ")}
    assert refused == {"refused: LBFGS", "refused: SparseAdam"}, told
    assert re.findall(r"(\d+) left to PyTorch", done.stdout) == ["0", "0"], told
    assert re.findall(r"(\d+) fail in eager", done.stdout) == ["0", "0"], told
