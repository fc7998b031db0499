# SPDX-License-Identifier: Apache-2.0
"""`caesura lora`, and `caesura train` on what it writes."""

import shutil
import subprocess

import numpy as np
import onnx
import onnx.parser
import pytest

COMMAND = shutil.which("caesura")
pytestmark = pytest.mark.skipif(COMMAND is None, reason="the caesura command is not on PATH (. build/activate)")


def run(*arguments, expect=0):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == expect, done.stdout + done.stderr
    return done


def names_of(path):
    return sorted(initializer.name for initializer in onnx.load(path).graph.initializer)


def test_an_adapter_is_added_trained_saved_and_merged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    net (float[N, 2] x) => (float[N, 1] y) <float[2, 1] fc = {1, 1}> { y = MatMul (x, fc) }"""), "net.onnx")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 2)).astype(np.float32)
    np.savez("train.npz", x=x, values=x @ np.float32([[3], [-2]]))

    assert run("lora", "net.onnx").stdout == "fc  [1, 2]\n"
    added = run("lora", "net.onnx", "--target", "fc", "--rank", 1, "--output", "adapted.onnx").stdout
    assert added == "adapter of 1 layers, rank 1, alpha 8: 3 parameters\n"
    run("train", "adapted.onnx", "--data", "train.npz", "--loss", "mse", "--target", "values", "--lr", "0.05", "--epochs", 60,
        "--output", "trained.onnx")
    assert names_of("trained.onnx") == ["fc", "fc.lora_A.weight", "fc.lora_B.weight", "lora_scaling"]
    run("lora", "trained.onnx", "--save", "adapter")
    run("lora", "net.onnx", "--adapter", "adapter", "--merge", "--output", "merged.onnx")
    merged, = onnx.load("merged.onnx").graph.initializer
    assert np.allclose(onnx.numpy_helper.to_array(merged), [[3], [-2]], atol=0.2)


def test_mistakes_are_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    net (float[N, 2] x) => (float[N, 1] y) <float[2, 1] fc = {1, 1}> { y = MatMul (x, fc) }"""), "net.onnx")
    assert "no layer is named 'q_proj'; the model has 'fc'" in run("lora", "net.onnx", "--target", "q_proj", "--output", "a.onnx",
                                                                  expect=1).stderr
    assert "the model has no adapter" in run("lora", "net.onnx", "--save", "adapter", expect=1).stderr
    run("lora", "net.onnx", "--target", "fc", expect=2)  # without --output
