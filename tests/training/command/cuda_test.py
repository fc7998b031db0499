# SPDX-License-Identifier: Apache-2.0
"""`caesura train --provider cuda`, on the stand-ins for CUDA's libraries (tests/cuda) and where there is no GPU."""

import ctypes.util
import os
import pathlib
import shutil
import subprocess

import numpy as np
import onnx
import onnx.parser
import pytest

COMMAND = shutil.which("caesura")
pytestmark = pytest.mark.skipif(COMMAND is None, reason="the caesura command is not on PATH (. build/activate)")
OPTIONS = {"driver_library": "cuda", "nvrtc_library": "nvrtc", "cublas_lt_library": "cublaslt", "cudnn_library": "cudnn",
           "nccl_library": "nccl"}


def standins() -> dict:
    build = pathlib.Path(COMMAND).resolve().parents[1]
    found = {option: next(iter(build.glob(f"*/libcaesura_standin_{name}.so")), None) for option, name in OPTIONS.items()}
    if None in found.values():
        pytest.skip("built without the stand-ins for CUDA (cmake/setup.sh --cuda)")
    return found


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    np.savez(tmp_path / "data.npz", x=(np.eye(3, 4)[labels] * 3 + rng.normal(size=(60, 4))).astype(np.float32), labels=labels)
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        net (float[N, 4] x) => (float[N, 3] y) { h = MatMul (x, w) r = Relu (h) y = MatMul (r, u) }""")
    for name, shape in (("w", (4, 8)), ("u", (8, 3))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path


def train(folder, log, *arguments, **environment):
    return subprocess.run([COMMAND, "train", folder / "net.onnx", "--data", folder / "data.npz", "--target", "labels", "--lr", "1e-2",
                           "--epochs", "1", "--batch", "16", "--seed", "3", "--log", folder / log, *map(str, arguments)],
                          capture_output=True, text=True, check=False, timeout=120, env=os.environ | environment)


def losses(folder, log):
    return [float(row.split(",")[2]) for row in (folder / log).read_text().splitlines()[1:]]


def train_there(folder, log, *arguments, **environment):
    libraries = standins()
    options = [part for option, path in libraries.items() for part in ("--provider-option", f"{option}={path}")]
    # Kernels find the stand-in driver among the process's global names.
    return train(folder, log, "--provider", "cuda", *options, *arguments, LD_PRELOAD=str(libraries["driver_library"]),
                 CAESURA_PROGRAM_CACHE="off", STANDIN_REPORTS=str(folder / "reports"), **environment)


def test_trains_on_the_gpu(folder):
    here, there = train(folder, "here.csv"), train_there(folder, "there.csv")
    assert (here.returncode, there.returncode) == (0, 0), here.stderr + there.stderr
    np.testing.assert_allclose(losses(folder, "there.csv"), losses(folder, "here.csv"), rtol=1e-4)
    assert "falls back" not in there.stderr
    assert not (folder / "reports").exists()


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI's mpirun is not installed")
def test_ranks_have_a_gpu_each(folder):
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ranks = {**as_root, "STANDIN_NCCL_FOLDER": str(folder / "nccl"), "STANDIN_DEVICES": "2"}
    here = train(folder, "here.csv", "--nproc", 2, "--clip", 1, **as_root)
    there = train_there(folder, "there.csv", "--nproc", 2, "--clip", 1, **ranks)
    assert (here.returncode, there.returncode) == (0, 0), here.stderr + there.stderr
    np.testing.assert_allclose(losses(folder, "there.csv"), losses(folder, "here.csv"), rtol=1e-5)
    assert list((folder / "nccl").glob("*/all.*")) and "falls back" not in there.stderr
    assert not (folder / "reports").exists()
    wrong = train_there(folder, "log.csv", "--nproc", 2, **ranks | {"STANDIN_DEVICES": "1"})
    assert wrong.returncode != 0 and "nccl: ranks 0 and 1 have the same GPU" in wrong.stderr
    wrong = train_there(folder, "log.csv", "--nproc", 2, "--shard", 1, **ranks)
    assert wrong.returncode != 0 and "shard: parts of the state are exchanged in host memory" in wrong.stderr


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has a driver")
def test_without_a_driver_it_says_so(folder):
    done = train(folder, "log.csv", "--provider", "cuda")
    assert done.returncode != 0
    assert "no NVIDIA driver is installed on this machine" in done.stderr
