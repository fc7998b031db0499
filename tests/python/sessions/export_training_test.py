# SPDX-License-Identifier: Apache-2.0
"""A session's step as a plain ONNX file does what the session does, in other runtimes."""

import numpy as np
import onnx
import onnx.reference
import pytest

import caesura
from caesura import onnxruntime

MLP = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,3] x) => (float[N,2] scores)
<float[3,4] w = {0.5, -0.25, 0.125, 1, 0, -1, 0.3, -0.4, 0.7, 0.2, -0.6, 0.9}, float[4] b = {0.1, 0, -0.1, 0.2},
 float[4,2] v = {0.3, -0.2, 0.5, 0.4, -0.1, 0.6, 0.2, -0.7}> {
  h = MatMul (x, w)
  a = Add (h, b)
  r = Relu (a)
  scores = MatMul (r, v)
}"""
SGD, ADAMW = caesura.optim.SGD(lr=0.1, momentum=0.9, nesterov=True), caesura.optim.AdamW(lr=0.01, weight_decay=0.1)


def batch(i, n=4):
    rng = np.random.default_rng(i)
    return {"x": rng.standard_normal((n, 3)).astype(np.float32), "labels": rng.integers(0, 2, n)}


def session(text=MLP, **options):
    options = {"loss": "cross_entropy", "target": "labels", "optimizer": SGD} | options
    return caesura.TrainingSession(onnx.parser.parse_model(text), **options)


def plain(path):
    """The model at `path`, which the checker and full shape inference pass, of ONNX's own operators."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    nodes = [node for graph in graphs(model.graph) for node in graph.node]
    assert {node.domain for node in nodes} <= {""}
    assert [entry.domain for entry in model.opset_import] == [""]
    return model


def graphs(graph):
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


RUNTIMES = {"caesura": lambda path: onnxruntime.InferenceSession(path),
            "reference": lambda path: onnx.reference.ReferenceEvaluator(str(path))}


def train(path, batches, runtime="caesura", first=1, **more):
    """Trains the file; returns the losses, and what its changing inputs are in the end."""
    model = onnx.load(path)
    names = [output.name for output in model.graph.output]
    run = RUNTIMES[runtime](path)
    state = {initializer.name: onnx.numpy_helper.to_array(initializer) for initializer in model.graph.initializer
             if initializer.name in [value.name for value in model.graph.input]}
    losses = []
    for i, feeds in enumerate(batches):
        count = {"caesura.step": np.array(first + i)} | {name: values[i] for name, values in more.items()}
        known = [value.name for value in model.graph.input]
        found = dict(zip(names, run.run(None, state | {name: value for name, value in (feeds | count).items() if name in known})))
        losses.append(float(found["caesura.loss"]))
        state |= {name.removeprefix("updated."): value for name, value in found.items() if name.startswith("updated.")}
    return losses, state


def check(ours, path, batches, runtime="caesura", rtol=1e-5, **more):
    plain(path)
    losses, state = train(path, batches, runtime, **more)
    np.testing.assert_allclose(losses, [ours.step(feeds) for feeds in batches], rtol=rtol)
    for name, value in ours.parameters().items():
        np.testing.assert_allclose(state[name], value, rtol=rtol, atol=rtol, err_msg=name)


BRANCHING = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,3] x, int64 rounds) => (float[N,2] scores)
<float[3,2] w = {0.5, -0.25, 0.125, 1, 0, -1}, float[2,2] v = {0.3, -0.2, 0.5, 0.4}, bool yes = {1}, float zero = {0}> {
  h = MatMul (x, w)
  sum = ReduceSum <keepdims = 0> (h)
  above = Greater (sum, zero)
  a = If (above) <then_branch = t () => (float[N,2] y) { m = MatMul (h, v) y = Tanh (m) },
                  else_branch = e () => (float[N,2] y) { y = Neg (h) }>
  scores = Loop (rounds, yes, a) <body = b (int64 i, bool go, float[N,2] s) => (bool on, float[N,2] t) {
    on = Identity (go)
    m = MatMul (s, v)
    t = Tanh (m)
  }>
}"""


def test_branches_and_loops(tmp_path):
    ours = session(BRANCHING)
    ours.export_training(tmp_path / "step.onnx")
    check(ours, tmp_path / "step.onnx", [batch(i) | {"rounds": np.array(i % 3)} for i in range(6)])


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_twenty_steps_are_those_of_the_session(tmp_path, optimizer, runtime):
    ours = session(optimizer=optimizer)
    ours.step(batch(0))
    ours.export_training(tmp_path / "step.onnx")
    check(ours, tmp_path / "step.onnx", [batch(i, 2 + i % 3) for i in range(20)], runtime, first=2)


def test_defaults_are_what_the_session_has(tmp_path):
    ours = session(optimizer=ADAMW)
    ours.step(batch(0))
    ours.learning_rate = 0.5
    ours.export_training(tmp_path / "step.onnx")
    model = plain(tmp_path / "step.onnx")
    defaults = {initializer.name: onnx.numpy_helper.to_array(initializer) for initializer in model.graph.initializer}
    for name, value in ours.parameters().items():
        np.testing.assert_array_equal(defaults[name], value)
    assert defaults["caesura.learning_rate"] == 0.5
    required = [value.name for value in model.graph.input if value.name not in defaults]
    assert required == ["x", "labels", "caesura.step"]
    names = [value.name for value in model.graph.input if value.name in defaults and value.name != "caesura.learning_rate"]
    assert [output.name for output in model.graph.output] == ["caesura.loss"] + [f"updated.{name}" for name in names]
    assert "optimizer.exp_avg_sq.w" in names


def test_gradients(tmp_path):
    ours = session(keep_gradients=True)
    ours.export_training(tmp_path / "gradients.onnx", what="gradients")
    model = plain(tmp_path / "gradients.onnx")
    assert [output.name for output in model.graph.output] == ["caesura.loss", "gradient.w", "gradient.b", "gradient.v"]
    found = onnxruntime.InferenceSession(tmp_path / "gradients.onnx").run(None, batch(1))
    np.testing.assert_allclose(found[0], ours.step(batch(1)), rtol=1e-6)
    for name, value in zip(["w", "b", "v"], found[1:]):
        np.testing.assert_allclose(value, ours.gradients()[name], rtol=1e-5, atol=1e-7)


def test_clipping(tmp_path):
    ours = session(clip_norm=0.05)
    ours.export_training(tmp_path / "step.onnx")
    check(ours, tmp_path / "step.onnx", [batch(i) for i in range(5)])


def outputs(path, feeds):
    run = onnxruntime.InferenceSession(path)
    return dict(zip([output.name for output in run.get_outputs()], run.run(None, feeds)))


def test_what_the_session_keeps_and_the_norm_have_names(tmp_path):
    ours = session(clip_norm=0.05, keep_gradients=True, keep_outputs=["scores"])
    ours.export_training(tmp_path / "step.onnx")
    plain(tmp_path / "step.onnx")
    found = outputs(tmp_path / "step.onnx", batch(1) | {"caesura.step": np.array(1)})
    assert list(found)[:6] == ["caesura.loss", "scores", "gradient.w", "gradient.b", "gradient.v", "caesura.gradient_norm"]
    assert all(name.startswith("updated.") for name in list(found)[6:])
    ours.step(batch(1))
    np.testing.assert_allclose(found["scores"], ours.outputs()["scores"], rtol=1e-5, atol=1e-7)
    squares = sum(np.sum(np.square(value, dtype=np.float64)) for value in ours.gradients().values())
    np.testing.assert_allclose(found["caesura.gradient_norm"], np.sqrt(squares), rtol=1e-5)


def test_a_scaled_loss_tells_what_was_left_out(tmp_path):
    ours = session(precision="fp16")
    ours.export_training(tmp_path / "step.onnx")
    plain(tmp_path / "step.onnx")
    found = outputs(tmp_path / "step.onnx", batch(1) | {"caesura.step": np.array(1)})
    assert found["caesura.gradient_scale"] == 1 / 65536
    np.testing.assert_allclose(found["caesura.loss"], ours.step(batch(1)), rtol=1e-3)
    for name, value in ours.parameters().items():
        np.testing.assert_allclose(found[f"updated.{name}"], value, rtol=2e-3, atol=2e-3)
    broken = batch(1) | {"x": np.full((4, 3), np.inf, np.float32), "caesura.step": np.array(1)}
    left = outputs(tmp_path / "step.onnx", broken)
    assert not np.isfinite(left["caesura.gradient_scale"])
    np.testing.assert_array_equal(left["updated.w"], session().parameters()["w"])


def test_accumulation_is_two_files(tmp_path):
    ours = session(accumulation_steps=2)
    ours.export_training(tmp_path / "step.onnx")
    ours.export_training(tmp_path / "accumulate.onnx", what="accumulate")
    plain(tmp_path / "accumulate.onnx")
    reset = {"caesura.reset": [np.array(True)]}
    _, state = train(tmp_path / "accumulate.onnx", [batch(1)], **reset)
    sums = {name: value for name, value in state.items() if name.startswith("accumulator.")}
    feeds = batch(2) | sums | {"caesura.reset": np.array(False), "caesura.step": np.array(1)}
    run = onnxruntime.InferenceSession(tmp_path / "step.onnx")
    found = dict(zip([output.name for output in run.get_outputs()], run.run(None, feeds)))
    ours.step(batch(1))
    ours.step(batch(2))
    for name, value in ours.parameters().items():
        np.testing.assert_allclose(found[f"updated.{name}"], value, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="'accumulate' needs a session that accumulates"):
        session().export_training(tmp_path / "accumulate.onnx", what="accumulate")


def test_refusals_come_before_the_file(tmp_path):
    path = tmp_path / "step.onnx"
    with pytest.raises(ValueError, match="what: expected step, accumulate or gradients, got 'loss'"):
        session().export_training(path, what="loss")
    with pytest.raises(NotImplementedError, match="cannot be written in ONNX's operators:\n.*RequireFinite"):
        session(refuse_nonfinite=True).export_training(path)
    assert not path.exists()


OLD = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,4] x) => (float[N,2] scores)
<float[4,4] w = {0.5, -0.25, 0.125, 1, 0, -1, 0.3, -0.4, 0.7, 0.2, -0.6, 0.9, 0.1, 0.2, 0.3, 0.4}, int64[1] rows = {0},
 float[2,2] v = {0.3, -0.2, 0.5, 0.4}> {
  h = MatMul (x, w)
  g = Gelu (h)
  mean = ReduceMean (g, rows)
  c = Sub (g, mean)
  a, b = Split <axis = 1, num_outputs = 2> (c)
  p = Mul (a, b)
  scores = MatMul (p, v)
}"""


def test_an_older_opset(tmp_path):
    ours = session(OLD, optimizer=ADAMW)
    for opset, ir in {0: 10, 17: 8, 21: 10}.items():
        ours.export_training(tmp_path / f"{opset}.onnx", opset=opset)
        model = plain(tmp_path / f"{opset}.onnx")
        assert (model.opset_import[0].version, model.ir_version) == (opset or 20, ir)
    rng = np.random.default_rng(0)
    batches = [{"x": rng.standard_normal((4, 4)).astype(np.float32), "labels": rng.integers(0, 2, 4)} for _ in range(5)]
    check(ours, tmp_path / "17.onnx", batches, "reference")


def test_what_an_opset_does_not_have_is_refused(tmp_path):
    gather = "at = Shape (h) ones = Expand (one, at) g = GatherElements (h, ones) a = Add (g, b)"
    taken = MLP.replace("a = Add (h, b)", gather).replace("<float[3,4] w", "<int64 one = {1}, float[3,4] w")
    with pytest.raises(NotImplementedError, match=r"opset 13 does not have 1 node\(s\):\n  \[ScatterElements "):
        session(taken).export_training(tmp_path / "step.onnx", opset=13)
    with pytest.raises(ValueError, match="opset: expected 13 to 28, got 12"):
        session().export_training(tmp_path / "step.onnx", opset=12)
    assert not list(tmp_path.iterdir())
