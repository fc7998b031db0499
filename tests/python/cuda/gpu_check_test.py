# SPDX-License-Identifier: Apache-2.0
"""The first minutes on a GPU (benchmarks/gpu/gpu_check.py), rehearsed on the stand-ins; and where there is no GPU."""

import ctypes.util
import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

from caesura import _core
from standin_cuda import paths

ROOT, BUILD = pathlib.Path(__file__).resolve().parents[3], pathlib.Path(_core.__file__).parents[2]
pytestmark = pytest.mark.skipif(not paths() or not (BUILD / "bin/gpt2_step").exists() or not (BUILD / "bin/caesura_tests").exists(),
                                reason="built without the stand-ins for CUDA (cmake/setup.sh --cuda), the tests or the benchmarks")


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pack")
    subprocess.run([sys.executable, ROOT / "benchmarks/gpu/gpu_check.py", "pack", folder, "--build", BUILD], check=True)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 64 << 20
    return folder


def run(pack, out, *options):
    done = subprocess.run([sys.executable, pack / "gpu_check.py", "run", "--out", out, *options], check=False, capture_output=True,
                          text=True)
    report = json.loads((out / "report.json").read_text())
    return done.returncode, {stage["stage"]: stage for stage in report["stages"]}, (out / "report.txt").read_text()


def test_the_whole_of_it_passes_on_the_standins(pack, tmp_path):
    code, stages, text = run(pack, tmp_path, "--standins", BUILD)
    assert code == 0, text
    passed = {name for name, stage in stages.items() if stage["status"] == "passed"}
    assert {"facts", "products", "kernels", "sizes", "models", "yield and resume", "GPT-2"} <= passed
    assert "cuBLASLt takes" in text
    checks = [figures for figures in stages["sizes"]["figures"] if "check" in figures]
    assert [figures["check"] for figures in checks] == ["fp32", "bf16", "fp16"]
    assert all(figures["passed"] and figures["same_bits_twice"] for figures in checks)
    assert stages["GPT-2"]["figures"][0]["milliseconds"] > 0
    assert "passed CudaProvider.RunsASession" in text and "skipped CudaProvider.FailuresFallBackToTheCpu" in text


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has a driver")
def test_failures_end_no_stage_but_their_own(pack, tmp_path):
    code, stages, text = run(pack, tmp_path)
    assert code == 1
    assert stages["facts"]["status"] == "passed"
    assert {stages[name]["status"] for name in ("products", "kernels", "sizes", "models", "GPT-2")} == {"failed"}
    assert "no NVIDIA driver is installed on this machine" in text


def test_a_stage_ends_at_its_limit(tmp_path):
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "benchmarks/gpu/gpu_check.py")
    gpu_check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpu_check)
    check = gpu_check.Check(tmp_path, tmp_path, tmp_path, 60, [], None)
    say = [sys.executable, "-c", "print('{\"answer\": 42}')"]
    check.stage("slow", 1.5, check.commands(say, [sys.executable, "-c", "import time; time.sleep(1000)"]))
    check.stage("fast", 50, check.commands(say))
    check.end = 0
    check.stage("late", 50, check.commands(say))
    stages = json.loads((tmp_path / "report.json").read_text())["stages"]
    assert [stage["status"] for stage in stages] == ["at its limit", "passed", "no time left"]
    assert [stage["figures"] for stage in stages] == [[{"answer": 42}], [{"answer": 42}], []]
