# SPDX-License-Identifier: Apache-2.0
"""Model ops that are AOTInductor packages: wrapped by the command, run in sessions."""

import shutil
import subprocess
import threading

import numpy as np
import pytest

import caesura
from caesura import _core, onnxruntime

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++, which PyTorch's inductor compiles with"),
    pytest.mark.skipif(not _core.has_plugin("caesura_runtime_torch"), reason="built without CAESURA_TORCH"),
]


class Square(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), 3.0))

    def forward(self, x, n):
        return self.weight * x * x, n + 1


@pytest.fixture(name="package", scope="module")
def fixture_package(tmp_path_factory):
    path = tmp_path_factory.mktemp("aoti") / "square.pt2"
    rows = torch.export.Dim("N", min=2, max=100)
    exported = torch.export.export(Square(), (torch.ones(3, 2), torch.tensor(5)), dynamic_shapes=({0: rows}, None))
    fast = {"aot_inductor.compile_wrapper_opt_level": "O0", "aot_inductor.precompile_headers": False}  # half a minute still
    torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=fast)
    return path


def wrap(package, out, *more):
    types = ["--input-type", "input_0=float32[N, 2]", "--input-type", "input_1=int64[]",
             "--output-type", "output_0=float32[N, 2]", "--output-type", "output_1=int64[]"]
    return subprocess.run(["caesura", "wrap-model", str(package), "--runtime", "torch", "--output", str(out), *types, *more],
                          capture_output=True, text=True, timeout=300)


@pytest.fixture(name="model", scope="module")
def fixture_model(package, tmp_path_factory):
    out = tmp_path_factory.mktemp("wrapped") / "wrapped.onnx"
    result = wrap(package, out, "--option", "runners=2")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[0] == "input   input_0  float32[N, 2]"
    return str(out)


def test_packages_run_in_threads_at_any_size(model):
    session = onnxruntime.InferenceSession(model)
    wrong = []

    def work(seed):
        for i in range(50):
            x = np.random.default_rng(seed * 100 + i).standard_normal((2 + (seed + i) % 7, 2), np.float32)
            squares, n = session.run(None, {"input_0": x, "input_1": np.int64(i)})
            if n != i + 1 or not np.allclose(squares, 3 * x * x, rtol=1e-6):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_a_package_cannot_do_is_said(package, model, tmp_path):
    with pytest.raises(NotImplementedError, match="an AOTInductor package computes no gradient; give the node a gradient_model"):
        caesura.SplitModule(model, inputs=["input_0"])
    with pytest.raises(ValueError, match="'input_0' is float32"):
        onnxruntime.InferenceSession(model).run(None, {"input_0": np.ones((3, 2)), "input_1": np.int64(1)})
    result = wrap(package, tmp_path / "w.onnx", "--option", "threads=2")
    assert "there is no option 'threads'; known are: runners" in result.stderr and result.returncode != 0
    result = subprocess.run(["caesura", "wrap-model", str(package), "--runtime", "torch", "--output", str(tmp_path / "w.onnx")],
                            capture_output=True, text=True, timeout=300)
    assert "cannot tell the type of input 'input_0'; state it" in result.stderr and result.returncode != 0
