# SPDX-License-Identifier: Apache-2.0
"""TrainingSession covers onnxruntime's on-device training."""

import numpy as np
import onnx
import pytest

import caesura

MODEL = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,3] x) => (float[N,2] scores, float[N,2] chances) <float[3,2] w = {0.5, -0.25, 0.125, 1, 0, -1}> {
  scores = MatMul (x, w)
  chances = Softmax (scores)
}"""


def feeds(seed=0, n=4):
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((n, 3)).astype(np.float32), "labels": rng.integers(0, 2, n)}


def session(**options):
    options = {"loss": "cross_entropy", "target": "labels", "optimizer": "sgd", "learning_rate": 0.5} | options
    return caesura.TrainingSession(onnx.parser.parse_model(MODEL), **options)


def test_takes_a_model_proto_as_all_sessions_do():
    proto = onnx.parser.parse_model(MODEL)
    x = feeds()["x"]
    expected = caesura.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    for found in (caesura.InferenceSession(proto).run(None, {"x": x}), session().predict({"x": x}),
                  list(caesura.SplitModule(proto).predict({"x": x}).values())):
        np.testing.assert_array_equal(found[0], expected[0])


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
    exported = caesura.InferenceSession(tmp_path / "scores.onnx")
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
