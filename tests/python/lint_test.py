# SPDX-License-Identifier: Apache-2.0
"""cmake/lint.sh finds nothing: the layout of C++, ruff's rules in all Python files, the types of the public package."""

import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    not all(map(shutil.which, ("clang-format", "ruff", "mypy"))), reason="cmake/setup.sh --style installs clang-format, ruff and mypy"
)
@pytest.mark.skipif(not (ROOT / "build/python/caesura/_core.pyi").exists(), reason="the build is in another folder")
def test_lint():
    done = subprocess.run([ROOT / "cmake/lint.sh"], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
