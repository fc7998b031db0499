# SPDX-License-Identifier: Apache-2.0
"""cmake/lint.sh finds nothing: the layout of C++, faults in Python files, imports against the order of the package's parts, types."""

import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = "torch_bridge/python/caesura"


@pytest.mark.skipif(
    not all(map(shutil.which, ("clang-format", "ruff", "mypy", "lint-imports"))), reason="cmake/setup.sh --style installs them"
)
@pytest.mark.skipif(not (ROOT / "build/python/caesura/_core.pyi").exists(), reason="the build is in another folder")
def test_lint():
    done = subprocess.run([ROOT / "cmake/lint.sh"], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not shutil.which("ruff"), reason="cmake/setup.sh --style installs ruff")
@pytest.mark.parametrize("module, count", [("capture/frames.py", 4), ("capture/compat.py", 0)])
def test_private_modules_of_pytorch_are_imported_in_compat_only(module, count):
    code = """from torch._dynamo import config
import torch._guards as g
from torch.utils import _pytree
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
"""
    done = subprocess.run(["ruff", "check", "--select=PLC2701,TID251", "--output-format=concise", "--stdin-filename",
                           f"{PACKAGE}/{module}", "-"], cwd=ROOT, input=code, capture_output=True, text=True, check=False)
    assert len([line for line in done.stdout.splitlines() if line.startswith(PACKAGE)]) == count, done.stdout + done.stderr
