# SPDX-License-Identifier: Apache-2.0
"""TrainingSession covers onnxruntime's on-device training."""

import ml_dtypes
import numpy as np
import onnx
import pytest

import caesura
from caesura import onnxruntime
from caesura.sessions.values import from_value, to_value

MODEL = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,3] x) => (float[N,2] scores, float[N,2] chances) <float[3,2] w = {0.5, -0.25, 0.125, 1, 0, -1}> {
  scores = MatMul (x, w)
  chances = Softmax (scores)
}"""


def feeds(seed=0, n=4):
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((n, 3)).astype(np.float32), "labels": rng.integers(0, 2, n)}


def session(**options):
    options = {"loss": "cross_entropy", "target": "labels", "optimizer": caesura.optim.SGD(lr=0.5)} | options
    return caesura.TrainingSession(onnx.parser.parse_model(MODEL), **options)


def test_takes_a_model_proto_as_all_sessions_do():
    proto = onnx.parser.parse_model(MODEL)
    x = feeds()["x"]
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    for found in (onnxruntime.InferenceSession(proto).run(None, {"x": x}), session().predict({"x": x}),
                  list(caesura.SplitModule(proto).predict({"x": x}).values())):
        np.testing.assert_array_equal(found[0], expected[0])


def test_sessions_say_what_they_are():
    proto, trained = onnx.parser.parse_model(MODEL), session()
    trained.step(feeds())
    assert repr(trained) == "TrainingSession(1 trained parameters, 1 updates)"
    assert repr(caesura.SplitModule(proto)) == "SplitModule(outputs=['scores', 'chances'], gradients=['w'])"
    assert repr(onnxruntime.InferenceSession(proto)) == ("InferenceSession(inputs=['x'], outputs=['scores', 'chances'], "
                                                         "providers=['CPUExecutionProvider'])")


def test_gradients_have_names():
    trained = session(keep_gradients=True)
    before = trained.parameters()["w"]
    trained.step(feeds())
    assert list(trained.gradients()) == ["w"]
    np.testing.assert_allclose(before - 0.5 * trained.gradients()["w"], trained.parameters()["w"], rtol=1e-6)


def test_outputs_of_the_step():
    trained = session(keep_outputs=["chances"])
    expected = trained.predict({"x": feeds()["x"]})[1]
    trained.step(feeds())
    assert list(trained.outputs()) == ["chances"]
    np.testing.assert_array_equal(trained.outputs()["chances"], expected)
    with pytest.raises(ValueError, match="no output 'scroes'; its outputs are 'scores' 'chances'"):
        session(keep_outputs=["scroes"])


def test_export_of_chosen_outputs(tmp_path):
    trained = session()
    trained.step(feeds())
    trained.export(tmp_path / "scores.onnx", outputs=["scores"])
    exported = onnxruntime.InferenceSession(tmp_path / "scores.onnx")
    assert [output.name for output in exported.get_outputs()] == ["scores"]
    np.testing.assert_array_equal(exported.run(None, {"x": feeds()["x"]})[0], trained.predict({"x": feeds()["x"]})[0])


def test_schedule_follows_pytorch():
    torch = pytest.importorskip("torch")
    trained = session(schedule="linear", total_steps=6, warmup_steps=2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: t / 2 if t < 2 else max(0, (6 - t) / 4))
    for _ in range(7):
        assert trained.learning_rate == pytest.approx(scheduler.get_last_lr()[0])
        trained.step(feeds())
        optimizer.step()
        scheduler.step()
    with pytest.raises(ValueError, match="no schedule 'cosin'"):
        session(schedule="cosin", total_steps=3)


def test_windows_of_any_length():
    counted, free = session(accumulation_steps=3), session(accumulation_steps=0)
    for seed in range(3):
        expected = counted.step(feeds(seed))
        assert (free.step if seed == 2 else free.accumulate)(feeds(seed)) == expected
    np.testing.assert_array_equal(free.parameters()["w"], counted.parameters()["w"])
    assert free.updates == 1
    free.step(feeds(3))
    assert free.updates == 2
    with pytest.raises(ValueError, match="accumulation_steps is 3"):
        counted.accumulate(feeds())


def other_order(array):
    return array.astype(array.dtype.newbyteorder())


def test_arrays_of_the_other_byte_order():
    proto, plain = onnx.parser.parse_model(MODEL), feeds()
    turned = {name: other_order(array) for name, array in plain.items()}
    x, turned_x = plain["x"], turned["x"]
    scores = x @ np.float32([[.5, -.25], [.125, 1], [0, -1]])
    inference, split, trained = onnxruntime.InferenceSession(proto), caesura.SplitModule(proto), session()
    for run in (inference.run, lambda _, fed: trained.predict(fed), lambda _, fed: list(split.predict(fed).values())):
        np.testing.assert_allclose(run(None, {"x": turned_x})[0], scores, rtol=1e-6)
    assert trained.step(turned) == session().step(plain)
    w = np.float32([[1, 2], [3, 4], [5, 6]])
    trained.set_parameter("w", other_order(w))
    split.set_parameters({"w": other_order(w)})
    assert trained.parameters()["w"].tolist() == split.parameters()["w"].tolist() == w.tolist()
    run = split.forward({"x": x})
    np.testing.assert_allclose(run.backward({"scores": other_order(scores)})["w"], x.T @ scores, rtol=1e-5)
    # A binding reads the caller's own bytes.
    for bind in (onnxruntime.OrtValue.ortvalue_from_numpy, lambda array: inference.io_binding().bind_cpu_input("x", array)):
        with pytest.raises(ValueError, match="not in this machine's byte order"):
            bind(turned_x)
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(x.shape, np.float32)
    value.update_inplace(turned_x)
    np.testing.assert_array_equal(value.numpy(), x)


@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64", "complex128", "int16", "uint16", "int32", "uint64", "bfloat16"])
def test_every_dtype_comes_in_the_other_byte_order(dtype):
    array = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, dtype, dtype))
    turned = array.byteswap().view(array.dtype.newbyteorder())
    for fed, expected in ((turned, array), (turned[:, ::2], array[:, ::2]), (turned[1, 1:2].reshape(()), array[1, 1])):
        np.testing.assert_array_equal(from_value(to_value(fed)), expected)
    assert from_value(to_value([turned]))[0].dtype == array.dtype
