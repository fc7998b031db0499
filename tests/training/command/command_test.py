# SPDX-License-Identifier: Apache-2.0
"""The `caesura` command, run as a user runs it; NumPy's and safetensors' own packages say what is right."""

import json
import shutil
import subprocess

import ml_dtypes
import numpy as np
import onnx
import pytest
import safetensors.numpy
from onnx import TensorProto, helper

COMMAND = shutil.which("caesura")
pytestmark = pytest.mark.skipif(COMMAND is None, reason="the caesura command is not on PATH (. build/activate)")


def run(*arguments, expect=0):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == expect, done.stdout + done.stderr
    return done


def arrays():
    rng = np.random.default_rng(0)
    return {
        "weight": rng.standard_normal((3, 4)).astype(np.float32),
        "double": rng.standard_normal((2, 2, 2)),
        "half": np.array([1.5, -2], np.float16),
        "count": np.array(7, np.int64),
        "bytes": np.arange(5, dtype=np.uint8),
        "flags": np.array([True, False]),
        "empty": np.zeros((0, 3), np.int16),
        "layer/0.é": np.array([[1]], np.uint32),
    }


def same(got, want):
    assert sorted(got) == sorted(want)
    for name, array in want.items():
        assert got[name].dtype == array.dtype and got[name].shape == array.shape, name
        assert got[name].tobytes() == array.tobytes(), name


def test_version():
    text = run("--version").stdout
    for word in ("caesura", "compiler", "oneDNN", "ONNX", "instruction set", "threads", "options"):
        assert word in text


def test_wrong_usage():
    run(expect=2)
    run("nonsense", expect=2)
    run("inspect", expect=2)
    run("inspect", "a.onnx", "--nonsense", expect=2)
    assert "inspect" in run("--help").stdout


@pytest.mark.parametrize("compress", [False, True])
def test_npz_to_safetensors_and_back(tmp_path, compress):
    (np.savez_compressed if compress else np.savez)(tmp_path / "a.npz", **arrays())
    run("convert", tmp_path / "a.npz", tmp_path / "a.safetensors")
    same(safetensors.numpy.load_file(tmp_path / "a.safetensors"), arrays())
    run("convert", tmp_path / "a.safetensors", tmp_path / "b.npz", *(["--compress"] if compress else []))
    with np.load(tmp_path / "b.npz") as loaded:
        same(dict(loaded), arrays())


def test_files_of_the_safetensors_package(tmp_path):
    written = arrays() | {
        "brain": np.array([1.5, 3e38], ml_dtypes.bfloat16),
        "tiny": np.array([1, 448], ml_dtypes.float8_e4m3fn),
        "complex": np.array([1 + 2j], np.complex64),
    }
    safetensors.numpy.save_file(written, tmp_path / "a.safetensors", metadata={"format": "pt"})
    run("convert", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    same(safetensors.numpy.load_file(tmp_path / "b.safetensors"), written)
    with safetensors.safe_open(tmp_path / "b.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}


def test_npy_in_every_order(tmp_path):
    array = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    for given in (array, np.asfortranarray(array), array.astype(">i4")):
        np.save(tmp_path / "a.npy", given)
        run("convert", tmp_path / "a.npy", tmp_path / "b.npy")
        same({"b": np.load(tmp_path / "b.npy")}, {"b": array})


def test_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.array([{}], object))
    assert "Python objects" in run("convert", tmp_path / "a.npz", tmp_path / "b.npz", expect=1).stderr


def write_model(path):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [onnx.numpy_helper.from_array(np.ones((3, 4), np.float32), "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def test_inspect(tmp_path):
    write_model(tmp_path / "net.onnx")
    text = run("inspect", tmp_path / "net.onnx", "--dim", "batch=5", "--plan").stdout
    assert "float32[batch, 3]" in text
    assert "1 tensors, 12 values, 48 B" in text
    assert "missing kernels: none" in text and "missing gradients: none" in text
    assert "memory of a run" in text and "plan\n" in text
    missing = run("inspect", tmp_path / "net.onnx", expect=1)
    assert "give --dim batch=..." in missing.stderr and "missing kernels: none" in missing.stdout
    assert "cannot be opened" in run("inspect", tmp_path / "none.onnx", expect=1).stderr


def test_conformance(tmp_path):
    conformance = pytest.importorskip("caesura.conformance")
    cases = [case for case in conformance.collect("test_relu") + conformance.collect("test_sequence_insert_at_back")]
    conformance.write_cases(cases, str(tmp_path / "cases"))
    summary = run("conformance", tmp_path / "cases", "--json", tmp_path / "out.json").stdout
    results = json.loads((tmp_path / "out.json").read_text())
    assert sorted(results) == sorted(case.name for case in cases)
    assert results["test_relu"] == "" and f"total {len(cases)} of {len(cases)}" in summary
    wrong = onnx.numpy_helper.from_array(np.full((3, 4, 5), 7, np.float32))
    (tmp_path / "cases/test_relu/test_data_set_0/output_0.pb").write_bytes(wrong.SerializeToString())
    assert "test_relu: output 0: 60 of 60 differ" in run("conformance", tmp_path / "cases", "--filter", "test_relu").stdout
    assert "--write" in run("conformance", tmp_path / "none", expect=1).stderr
