# SPDX-License-Identifier: Apache-2.0
"""TrainingSession's precision and memory_budget."""

import numpy as np
import onnx
import pytest

import caesura

MODEL = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,16] x) => (float[N,4] y) {
  a = MatMul (x, w1) b = Add (a, b1) c = Gelu (b) d = MatMul (c, w2) e = Add (d, b2) f = Gelu (e) y = MatMul (f, w3)
}"""


def model():
    rng = np.random.default_rng(0)
    proto = onnx.parser.parse_model(MODEL)
    for name, shape in {"w1": (16, 64), "b1": (64,), "w2": (64, 64), "b2": (64,), "w3": (64, 4)}.items():
        value = rng.standard_normal(shape).astype(np.float32) * 0.2
        proto.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return proto.SerializeToString()


def batch(n=32):
    rng = np.random.default_rng(1)
    return {"x": rng.standard_normal((n, 16)).astype(np.float32), "target": rng.integers(0, 4, n)}


@pytest.mark.parametrize("precision, tolerance", [("bf16", 0.02), ("fp16", 0.005)])
def test_losses_follow_float32(precision, tolerance):
    wide = caesura.TrainingSession(model(), optimizer=caesura.optim.AdamW(lr=1e-2), threads=1)
    mixed = caesura.TrainingSession(model(), optimizer=caesura.optim.AdamW(lr=1e-2), threads=1, precision=precision)
    losses = [(wide.step(batch()), mixed.step(batch())) for _ in range(10)]
    for want, found in losses:
        assert found == pytest.approx(want, rel=tolerance)
    assert losses[-1][1] < losses[0][1]
    assert mixed.updates == 10
    assert mixed.loss_scale == (65536 if precision == "fp16" else 1)
    assert all(value.dtype == np.float32 for value in mixed.parameters().values())
    outputs = mixed.evaluate(batch())[1]
    assert outputs[0].dtype == np.float32
    text, _ = mixed.plan(batch())
    assert {"bf16": "bfloat16[16, 64]", "fp16": "float16[16, 64]"}[precision] in text


def test_unknown_precision():
    with pytest.raises(ValueError, match="none of fp32, bf16, fp16"):
        caesura.TrainingSession(model(), precision="int8")


def test_memory_budget():
    feeds = batch(512)
    plain = caesura.TrainingSession(model(), threads=1)
    whole = plain.plan(feeds)[1]
    tight = caesura.TrainingSession(model(), threads=1, memory_budget=int(0.85 * whole))
    assert tight.plan(feeds)[1] <= 0.85 * whole
    assert [tight.step(feeds) for _ in range(3)] == [plain.step(feeds) for _ in range(3)]
    for name, value in plain.parameters().items():
        np.testing.assert_array_equal(tight.parameters()[name], value)
    with pytest.raises(MemoryError, match="expected at least"):
        caesura.TrainingSession(model(), threads=1, memory_budget=1).step(feeds)
