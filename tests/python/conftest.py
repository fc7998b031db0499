# SPDX-License-Identifier: Apache-2.0
"""Each test run makes its own captures; no program comes from an earlier run. Each test draws the same random numbers
in every run. Tests share helpers across folders."""

import contextlib
import os
import pathlib
import sys

import pytest

os.environ["CAESURA_PROGRAM_CACHE"] = "off"
sys.path += [str(folder) for folder in sorted(pathlib.Path(__file__).parent.iterdir()) if folder.is_dir()]
with contextlib.suppress(ImportError):  # tests without PyTorch run without it
    import preloaded  # noqa: F401


@pytest.fixture(autouse=True)
def _seed():
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
