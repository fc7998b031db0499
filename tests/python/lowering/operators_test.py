# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operator samples through our own kernels (benchmarks/operators.py): some, or with CAESURA_LONG all."""

import os
import pathlib

import pytest
from fork_server import Program

pytest.importorskip("torch")
pytest.importorskip("expecttest")


LONG = bool(os.environ.get("CAESURA_LONG"))


# With special values a route: zeros, infinities, NaN and others in place of the samples' own numbers.
@pytest.mark.parametrize("options", [(), ("--fills", "2"), ("--fills", "2", "--steps")], ids=" ".join)
def test_none_is_wrong(options):
    script = pathlib.Path(__file__).resolve().parents[3] / "benchmarks" / "operators.py"
    some = [] if LONG else ["--every", "40", "--samples", "2", "--dtypes", "float32"] if options else ["--every", "25", "--samples", "1"]
    done = Program(script, *options, *some).result(timeout=20000)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
