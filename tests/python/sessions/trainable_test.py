# SPDX-License-Identifier: Apache-2.0
"""Names select the values of an ONNX model that are trained."""

import numpy as np
import onnx
import pytest

import caesura
from caesura import onnxruntime


def parse(text):
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]>\n{text}')


RESIZED = """net (float[N,1,2,2] x) => (float[N,1,4,4] y)
<float[1,1,1,1] w = {0.5}, float[4] scales = {1, 1, 2, 2}, float[8] roi = {0, 0, 0, 0, 1, 1, 1, 1}, float[1] half = {2},
 float[2] ones = {1, 1}> {
  c = Conv (x, w)
  twice = Mul (half, ones)
  made = Concat <axis = 0> (ones, half, half)
  up = Resize <mode = "linear"> (c, , scales)
  y = Add (up, up)
}"""


def test_scales_of_resize_are_no_parameters():
    session = caesura.TrainingSession(parse(RESIZED), loss="mse", optimizer=caesura.optim.SGD(lr=0.1))
    assert list(session.parameters()) == ["w"]
    session.step({"x": np.ones((2, 1, 2, 2), np.float32), "target": np.zeros((2, 1, 4, 4), np.float32)})
    assert session.parameters()["w"] != 0.5


def test_nor_are_scales_that_the_model_computes():
    text = RESIZED.replace("(c, , scales)", "(c, , made)")
    assert list(caesura.TrainingSession(parse(text), loss="mse").parameters()) == ["w"]
    assert caesura.SplitModule(parse(text)).forward({"x": np.ones((1, 1, 2, 2), np.float32)}) is not None


IN_CONSTANTS = """net (float[N,2] x) => (float[N,2] y) {
  w = Constant <value = float[2,2] {0.5, -0.25, 0.125, 1}> ()
  b = Constant <value_floats = [0.5, 0.25]> ()
  axes = Constant <value_ints = [0]> ()
  p = MatMul (x, w)
  y = Add (p, b)
}"""
BATCH = {"x": np.array([[1, 2], [3, -1]], np.float32), "target": np.array([[1, 0], [0, 1]], np.float32)}


def test_constants_are_named_and_counted():
    with pytest.raises(ValueError, match="2 Constant nodes with 6 floating values.*train_constants"):
        caesura.TrainingSession(parse(IN_CONSTANTS), loss="mse")
    with pytest.raises(ValueError, match="no floating initializer 'w'.*Constant nodes hold some of them: train_constants"):
        caesura.TrainingSession(parse(IN_CONSTANTS), loss="mse", trainable=["w"])


def test_constants_train_as_initializers_do(tmp_path):
    options = {"loss": "mse", "optimizer": caesura.optim.SGD(lr=0.1)}
    session = caesura.TrainingSession(parse(IN_CONSTANTS), train_constants=True, **options)
    twin = caesura.TrainingSession(parse("""net (float[N,2] x) => (float[N,2] y)
    <float[2,2] w = {0.5, -0.25, 0.125, 1}, float[2] b = {0.5, 0.25}> {
      p = MatMul (x, w)
      y = Add (p, b)
    }"""), **options)
    for _ in range(3):
        assert session.step(BATCH) == twin.step(BATCH)
    assert sorted(session.parameters()) == ["b", "w"]
    for name, value in twin.parameters().items():
        np.testing.assert_array_equal(session.parameters()[name], value)
    session.export(tmp_path / "trained.onnx")
    again = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": BATCH["x"]})[0]
    np.testing.assert_array_equal(again, twin.predict({"x": BATCH["x"]})[0])
    assert list(caesura.TrainingSession(parse(IN_CONSTANTS), train_constants=True, frozen=["b"], **options).parameters()) == ["w"]
    gradients = caesura.SplitModule(parse(IN_CONSTANTS), train_constants=True).forward({"x": BATCH["x"]}).backward(
        {"y": np.ones((2, 2), np.float32)})
    assert sorted(gradients) == ["b", "w"]


def test_few_parameters_beside_many_constants_are_a_warning(capfd):
    text = IN_CONSTANTS.replace("=> (float[N,2] y) {", "=> (float[N,2] y) <float[2] a = {1, 1}> {").replace("(p, b)", "(p, a)")
    caesura.TrainingSession(parse(text), loss="mse")
    assert "1 Constant nodes with 4 floating values" in capfd.readouterr().err


LAYERS = """net (float[N,2] x) => (float[N,2] y)
<float[2,2] first_weight = {1, 2, 3, 4}, float[2] first_bias = {1, 2}, float[2,2] second_weight = {1, 0, 0, 1}> {
  a = MatMul (x, first_weight)
  b = Add (a, first_bias)
  y = MatMul (b, second_weight)
}"""


@pytest.mark.parametrize("make", [lambda **names: caesura.TrainingSession(parse(LAYERS), loss="mse", **names),
                                  lambda **names: caesura.SplitModule(parse(LAYERS), **names)])
@pytest.mark.parametrize("option", ["trainable", "frozen"])
def test_names_that_are_none_are_all_listed_with_the_nearest(make, option):
    with pytest.raises(ValueError) as error:
        make(**{option: ["first_wieght", "first_bias", "third*", "9_weight"]})
    text = str(error.value)
    assert option in text and "'first_wieght' (nearest: 'first_weight')" in text
    assert "'third*'" in text and "'9_weight'" in text and "'first_bias'," not in text


def test_frozen_parameters_are_read_and_set(tmp_path):
    options = {"loss": "mse", "optimizer": caesura.optim.SGD(lr=0.1), "accumulation_steps": 1}
    session = caesura.TrainingSession(parse(LAYERS), frozen=["first*"], **options)
    session.step(BATCH)
    assert list(session.parameters()) == ["second_weight"]
    np.testing.assert_array_equal(session.parameters(frozen=True)["first_weight"], [[1, 2], [3, 4]])
    other = np.array([[0, 1], [1, 0]], np.float32)
    session.set_parameter("first_weight", other)
    np.testing.assert_array_equal(session.parameters(frozen=True)["first_weight"], other)
    expected = (BATCH["x"] @ other + np.array([1, 2], np.float32)) @ session.parameters()["second_weight"]
    np.testing.assert_allclose(session.predict({"x": BATCH["x"]})[0], expected, rtol=1e-6)
    loss = session.step(BATCH)
    assert loss == pytest.approx(np.mean((expected - BATCH["target"]) ** 2), rel=1e-5)
    assert session.updates == 2

    session.save(tmp_path / "checkpoint")
    again = caesura.TrainingSession(parse(LAYERS), frozen=["first*"], **options)
    again.set_parameter("first_bias", np.array([5, 5], np.float32))  # not in the checkpoint: restored to the model's
    again.restore(tmp_path / "checkpoint")
    for name, value in session.parameters(frozen=True).items():
        np.testing.assert_array_equal(again.parameters(frozen=True)[name], value)
    assert again.step(BATCH) == session.step(BATCH)
    session.export(tmp_path / "trained.onnx")
    np.testing.assert_array_equal(onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": BATCH["x"]})[0],
                                  session.predict({"x": BATCH["x"]})[0])


def test_what_was_trained_before_it_was_frozen_comes_with_its_checkpoint(tmp_path):
    options = {"loss": "mse", "optimizer": caesura.optim.SGD(lr=0.1)}
    session = caesura.TrainingSession(parse(LAYERS), **options)
    session.step(BATCH)
    session.save(tmp_path / "checkpoint")
    frozen = caesura.TrainingSession(parse(LAYERS), frozen=["first*"], **options)
    frozen.restore(tmp_path / "checkpoint")
    np.testing.assert_array_equal(frozen.predict({"x": BATCH["x"]})[0], session.predict({"x": BATCH["x"]})[0])


def test_what_does_not_fit_a_frozen_parameter():
    session = caesura.TrainingSession(parse(LAYERS), frozen=["first*"], loss="mse")
    with pytest.raises(ValueError, match="parameter 'first_weight' is float32.2, 2., got float32.3."):
        session.set_parameter("first_weight", np.zeros(3, np.float32))
    with pytest.raises(KeyError, match="no parameter 'fisrt"):
        session.set_parameter("fisrt_weight", np.zeros(3, np.float32))
