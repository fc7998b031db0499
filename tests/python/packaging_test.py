# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml asks for goes together with each PyTorch that is supported."""

import json
import os
import pathlib
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from caesura.capture.compat import SEEN

EXTRAS = tomllib.loads((pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# What PyTorch's wheels with CUDA want exactly.
PINS = {
    "2.13.0": {"nvidia-cuda-nvrtc": "13.0.88", "nvidia-cublas": "13.1.1.3", "nvidia-cudnn-cu13": "9.20.0.48", "nvidia-nccl-cu13": "2.29.7"},
    "2.14.1": {"nvidia-cuda-nvrtc": "13.0.88", "nvidia-cublas": "13.1.1.3", "nvidia-cudnn-cu13": "9.24.0.43", "nvidia-nccl-cu13": "2.30.7"},
    "2.15.0": {"nvidia-cuda-nvrtc": "13.2.86", "nvidia-cublas": "13.4.1.3", "nvidia-cudnn-cu13": "9.26.0.51", "nvidia-nccl-cu13": "2.30.7"},
}


@pytest.mark.parametrize("release", SEEN)
def test_the_extras_take_what_each_pytorch_pins(release):
    torch, = map(Requirement, EXTRAS["torch"])
    assert release in torch.specifier
    assert {r.name: PINS[release][r.name] in r.specifier for r in map(Requirement, EXTRAS["cuda"])} == dict.fromkeys(PINS[release], True)


@pytest.mark.skipif(not os.environ.get("CAESURA_LONG"), reason="CAESURA_LONG=1: asks the package index, half a minute each")
@pytest.mark.parametrize("release", SEEN)
def test_pip_finds_the_extras_beside_each_pytorch(release, tmp_path):
    """pip's own answer is the same as PINS."""
    environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}  # not this machine's own choices
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--only-binary=:all:", "--quiet",
                           f"--report={tmp_path / 'report.json'}", f"torch=={release}", *EXTRAS["torch"], *EXTRAS["cuda"]],
                          env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    found = {canonicalize_name(item["metadata"]["name"]): item["metadata"]["version"] for item in report["install"]}
    assert found["torch"] == release
    assert {name: found[name] for name in PINS[release]} == PINS[release]
