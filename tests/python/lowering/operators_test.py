# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operator samples through our own kernels (benchmarks/operators.py): some, or with CAESURA_LONG all."""

import os
import pathlib

import pytest
from fork_server import Program

pytest.importorskip("torch")
pytest.importorskip("expecttest")


def test_none_is_wrong():
    script = pathlib.Path(__file__).resolve().parents[3] / "benchmarks" / "operators.py"
    some = [] if os.environ.get("CAESURA_LONG") else ["--every", "25", "--samples", "1"]
    done = Program(script, *some).result(timeout=20000)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
