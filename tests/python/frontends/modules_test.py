# SPDX-License-Identifier: Apache-2.0
"""PyTorch's module samples through wrap and compile_step (benchmarks/modules.py): some, or with CAESURA_LONG all."""

import os
import pathlib

import pytest
from fork_server import Program

pytest.importorskip("torch")
pytest.importorskip("expecttest")


def test_none_is_wrong():
    script = pathlib.Path(__file__).resolve().parents[3] / "benchmarks" / "modules.py"
    some = [] if os.environ.get("CAESURA_LONG") else ["--every", "6", "--samples", "1", "--dtypes", "float32"]
    done = Program(script, *some).result(timeout=20000)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
