# SPDX-License-Identifier: Apache-2.0
"""The names of the package: listed, there, and known to type checkers without PyTorch being imported."""

import ast
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

import caesura


def run(code: str) -> str:
    """Runs code in a new process; returns what it prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_every_public_name_is_listed():
    assert set(caesura.__all__) <= set(dir(caesura))
    assert run("import caesura, sys; dir(caesura); print('torch' in sys.modules)") == "False"


def test_a_package_without_its_compiled_part_names_the_line_that_builds_it(tmp_path):
    package = tmp_path / "build" / "python" / "caesura"
    package.mkdir(parents=True)
    (package / "__init__.py").symlink_to(pathlib.Path(caesura.__file__).resolve())
    done = subprocess.run([sys.executable, "-c", "import caesura"], env={**os.environ, "PYTHONPATH": str(package.parent)},
                          capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith(f"not built yet: cmake --build {tmp_path / 'build'} --target caesura_python\n")


def test_results_that_users_hold_have_names():
    assert {"CompiledStep", "ForwardRun", "OnnxOutputs", "Plan", "Stats"} <= set(caesura.typing.__all__)
    if importlib.util.find_spec("torch") is not None:
        assert [name for name in caesura.typing.__all__ if not hasattr(caesura.typing, name)] == []


def test_the_root_is_small():
    assert len(caesura.__all__) <= 20  # `clip_grad_norm_`, `fuse`, `gradient` and `lora` came to the 16 of the first design


def test_names_for_onnxruntimes_sake_are_apart():
    onnxruntime = caesura.onnxruntime
    assert set(onnxruntime.__all__) <= set(dir(onnxruntime)) and not set(onnxruntime.__all__) & set(dir(caesura))
    if importlib.util.find_spec("torch") is not None:
        assert [name for name in onnxruntime.__all__ if getattr(onnxruntime, name).__name__ != name] == []
    with pytest.raises(AttributeError, match="'caesura.onnxruntime' has no attribute 'Session'"):
        onnxruntime.Session


def test_errors_have_one_base():
    errors = caesura.Suspended, caesura.RankFailure, caesura.StepRefused, caesura.StrictError
    assert all(issubclass(error, caesura.Error) for error in errors) and issubclass(caesura.Error, RuntimeError)


@pytest.mark.parametrize("name", caesura.__all__)
def test_a_listed_name_is_there(name):
    if name in caesura._WITH_TORCH:
        pytest.importorskip("torch")
    assert getattr(caesura, name).__name__ == name


def test_reports_need_no_pytorch(tmp_path):
    code = f"""
import sys
sys.modules["torch"] = None
import numpy as np, onnx, caesura
net = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> '
                              'net (float[1,2] x) => (float[1,2] y) <float[2] w = {{1, 2}}> {{ y = Mul (x, w) }}')
session = caesura.TrainingSession(net.SerializeToString())
with caesura.strict(), caesura.profile({str(tmp_path / "a.html")!r}):
    session.step({{"x": np.ones((1, 2), np.float32), "target": np.array([1])}})
caesura.reports.reset()
print(caesura.stats())
"""
    assert run(code).startswith("own kernels 0.000 s") and (tmp_path / "a.html").exists()


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(AttributeError, match="'caesura' has no attribute 'wrapp'"):
        caesura.wrapp


def test_type_checkers_see_the_names_that_are_looked_up():
    (block,) = [n for n in ast.parse(pathlib.Path(caesura.__file__).read_text()).body
                if isinstance(n, ast.If) and getattr(n.test, "id", None) == "TYPE_CHECKING"]
    seen = {alias.name: statement.module for statement in block.body for alias in statement.names}
    assert seen == caesura._WITH_TORCH


def test_the_package_says_that_it_is_typed():
    assert (pathlib.Path(caesura.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("path", ["caesura.backend", "caesura.bench", "caesura.conformance",
                                  "caesura.onnxruntime", "caesura.optim", "caesura.ortmodule", "caesura.quantized"])
def test_a_public_import_path_is_there(path):
    assert importlib.util.find_spec(path) is not None
