# SPDX-License-Identifier: Apache-2.0
"""Models with QuantizeLinear and DequantizeLinear train as PyTorch's fake-quantized modules do."""

import numpy as np
import onnx
import pytest
import torch

import caesura

SCALE, CLIPPED = 0.05, 4.0  # values beyond 127 * SCALE are clipped: the inputs go further


def parse(text):
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]>\n{text}')


def gradients(model, x, dy):
    module = caesura.SplitModule(model, inputs=["x"])
    run = module.forward({"x": x})
    return run.outputs["y"] if hasattr(run, "outputs") else None, run.backward({"y": dy})


def inputs(shape=(4, 3, 5), seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * CLIPPED).astype(np.float32), rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype, low, high, zero", [("int8", -128, 127, 3), ("uint8", 0, 255, 120), ("int4", -8, 7, 1),
                                                     ("uint4", 0, 15, 7), ("int16", -32768, 32767, 0)])
def test_per_tensor(dtype, low, high, zero):
    x, dy = inputs()
    model = parse(f"""net (float[4,3,5] x) => (float[4,3,5] y) <float s = {{{SCALE}}}, {dtype} z = {{{zero}}}> {{
      q = QuantizeLinear (x, s, z)
      y = DequantizeLinear (q, s, z)
    }}""")
    theirs = torch.from_numpy(x).requires_grad_()
    torch.fake_quantize_per_tensor_affine(theirs, SCALE, zero, low, high).backward(torch.from_numpy(dy))
    ours = caesura.SplitModule(model, inputs=["x"]).forward({"x": x}).backward({"y": dy})["x"]
    np.testing.assert_array_equal(ours, theirs.grad.numpy())
    if dtype != "int16":
        assert 0 < (ours == 0).mean() < 1


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_per_axis(axis):
    x, dy = inputs()
    n = x.shape[axis]
    scales = [0.01 * (i + 1) for i in range(n)]
    zeros = [10 * i - 20 for i in range(n)]
    model = parse(f"""net (float[4,3,5] x) => (float[4,3,5] y)
    <float[{n}] s = {{{', '.join(map(str, scales))}}}, int8[{n}] z = {{{', '.join(map(str, zeros))}}}> {{
      q = QuantizeLinear <axis = {axis}> (x, s, z)
      y = DequantizeLinear <axis = {axis}> (q, s, z)
    }}""")
    theirs = torch.from_numpy(x).requires_grad_()
    torch.fake_quantize_per_channel_affine(theirs, torch.tensor(scales), torch.tensor(zeros, dtype=torch.int32), axis % 3, -128,
                                           127).backward(torch.from_numpy(dy))
    ours = caesura.SplitModule(model, inputs=["x"]).forward({"x": x}).backward({"y": dy})["x"]
    np.testing.assert_array_equal(ours, theirs.grad.numpy())
    assert 0 < (ours == 0).mean() < 1


def test_in_blocks():
    x, dy = inputs((4, 6))
    scales = np.array([[0.01, 0.02], [0.03, 0.04], [0.05, 0.01], [0.02, 0.1]], np.float32)
    model = parse(f"""net (float[4,6] x) => (float[4,6] y) <float[4,2] s = {{{', '.join(map(str, scales.ravel()))}}}> {{
      q = QuantizeLinear <axis = 1, block_size = 3, output_dtype = 3> (x, s)
      y = DequantizeLinear <axis = 1, block_size = 3> (q, s)
    }}""")
    ratio = np.round(x / np.repeat(scales, 3, axis=1))
    ours = caesura.SplitModule(model, inputs=["x"]).forward({"x": x}).backward({"y": dy})["x"]
    np.testing.assert_array_equal(ours, np.where((ratio >= -128) & (ratio <= 127), dy, 0))
    assert 0 < (ours == 0).mean() < 1


def test_float8_has_the_range_of_its_type():
    x, dy = inputs((64,))
    model = parse("""net (float[64] x) => (float[64] y) <float s = {0.01}, float8e4m3fn z = {0}> {
      q = QuantizeLinear (x, s, z)
      y = DequantizeLinear (q, s, z)
    }""")
    ours = caesura.SplitModule(model, inputs=["x"]).forward({"x": x}).backward({"y": dy})["x"]
    np.testing.assert_array_equal(ours, np.where(np.abs(x / np.float32(0.01)) <= 448, dy, 0))
    assert 0 < (ours == 0).mean() < 1


def test_other_scales_behind_than_before():
    x, dy = inputs((8,))
    model = parse("""net (float[8] x) => (float[8] y) <float s = {0.05}, float t = {0.2}, int8 z = {0}> {
      q = QuantizeLinear (x, s, z)
      y = DequantizeLinear (q, t, z)
    }""")
    ours = caesura.SplitModule(model, inputs=["x"]).forward({"x": x}).backward({"y": dy})["x"]
    np.testing.assert_allclose(ours, np.where(np.abs(np.round(x / 0.05)) <= 127, 4 * dy, 0), rtol=1e-6)


def test_dynamic_quantization_clips_nothing():
    x, dy = inputs((16,))
    model = parse("""net (float[16] x) => (float[16] y) {
      q, s, z = DynamicQuantizeLinear (x)
      r = DequantizeLinear (q, s, z)
      y = Identity (r)
    }""")
    ours = caesura.SplitModule(model, inputs=["x"]).forward({"x": x}).backward({"y": dy})["x"]
    inside = (x > x.min()) & (x < x.max())  # the ends determine the scale
    np.testing.assert_allclose(ours[inside], dy[inside], rtol=1e-6)


NET = """net (float[N,4] x) => (float[N,2] y)
<float[4,2] w = {0.5, -0.25, 0.125, 1, 0, -1, 0.75, -0.5}, float[2] b = {0.1, -0.1}, float s = {0.03}, float[2] t = {0.004, 0.02},
 int8 z = {0}, int8[2] u = {0, 0}> {
  xq = QuantizeLinear (x, s, z)
  xd = DequantizeLinear (xq, s, z)
  wq = QuantizeLinear <axis = 1> (w, t, u)
  wd = DequantizeLinear <axis = 1> (wq, t, u)
  p = MatMul (xd, wd)
  y = Add (p, b)
}"""


def test_trains_as_the_module_in_pytorch():
    rng = np.random.default_rng(1)
    x, target = rng.standard_normal((16, 4)).astype(np.float32), rng.standard_normal((16, 2)).astype(np.float32)
    session = caesura.TrainingSession(parse(NET), loss="mse", optimizer=caesura.optim.SGD(lr=0.1))
    before = session.parameters()
    assert sorted(before) == ["b", "w"]  # the scales are no parameters
    w, b = (torch.from_numpy(before[name]).clone().requires_grad_() for name in ("w", "b"))
    optimizer = torch.optim.SGD([w, b], 0.1)
    for _ in range(20):
        loss = session.step({"x": x, "target": target})
        optimizer.zero_grad()
        xd = torch.fake_quantize_per_tensor_affine(torch.from_numpy(x), 0.03, 0, -128, 127)
        wd = torch.fake_quantize_per_channel_affine(w, torch.tensor([0.004, 0.02]), torch.zeros(2, dtype=torch.int32), 1, -128, 127)
        theirs = torch.nn.functional.mse_loss(xd @ wd + b, torch.from_numpy(target))
        theirs.backward()
        optimizer.step()
        assert loss == pytest.approx(theirs.item(), rel=1e-5)
    after = session.parameters()
    assert np.abs(after["w"] - before["w"]).max() > 0.01
    np.testing.assert_allclose(after["w"], w.detach().numpy(), rtol=1e-4, atol=1e-6)
    assert (after["w"] == before["w"]).any()  # clipped entries do not change


def test_a_scale_that_is_named_is_trained():
    session = caesura.TrainingSession(parse(NET), loss="mse", optimizer=caesura.optim.SGD(lr=0.01), trainable=["t"],
                                      keep_gradients=True)
    rng = np.random.default_rng(1)
    x, target = rng.standard_normal((16, 4)).astype(np.float32), rng.standard_normal((16, 2)).astype(np.float32)
    w, b = (torch.from_numpy(session.parameters(frozen=True)[name]).clone() for name in ("w", "b"))
    t = torch.tensor([0.004, 0.02], requires_grad=True)
    session.step({"x": x, "target": target})
    xd = torch.fake_quantize_per_tensor_affine(torch.from_numpy(x), 0.03, 0, -128, 127)
    wd = torch._fake_quantize_learnable_per_channel_affine(w, t, torch.zeros(2), 1, -128, 127)
    torch.nn.functional.mse_loss(xd @ wd + b, torch.from_numpy(target)).backward()
    np.testing.assert_allclose(session.gradients()["t"], t.grad.numpy(), rtol=1e-4)


def test_integer_weights_say_what_to_do():
    model = parse("""net (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {1, 2, 3, 4}, float s = {0.1}> {
      wd = DequantizeLinear (w, s)
      y = MatMul (x, wd)
    }""")
    with pytest.raises(ValueError, match="1 weights are whole numbers that DequantizeLinear or .*'w'.*cannot be trained.*export"):
        caesura.TrainingSession(model, loss="mse")


def test_no_gradient_at_all_is_an_error_that_names_the_ops():
    model = parse("""net (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> {
      p = MatMul (x, w)
      r = Round (p)
      y = Add (r, x)
    }""")
    with pytest.raises(ValueError, match="no gradient of the loss reaches any parameter; it stops at .Round "):
        caesura.TrainingSession(model, loss="mse")


def test_some_without_a_gradient_are_listed(capfd):
    model = parse("""net (float[N,2] x) => (float[N,2] y, float[N,2] other)
    <float[2,2] w = {1, 2, 3, 4}, float[2] idle = {1, 2}, float[2] b = {1, 1}> {
      y = MatMul (x, w)
      o = Add (x, idle)
      f = Floor (b)
      other = Add (o, f)
    }""")
    session = caesura.TrainingSession(model, loss="mse")
    warning = capfd.readouterr().err
    assert "no gradient of 2 initializers, which stay as they are: 'idle', 'b'" in warning
    assert list(session.parameters()) == ["w"] and set(session.parameters(frozen=True)) == {"w", "idle", "b"}
    caesura.TrainingSession(model, loss="mse", frozen=["idle", "b"])
    assert "initializers" not in capfd.readouterr().err
