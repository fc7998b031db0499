# SPDX-License-Identifier: Apache-2.0
"""The `caesura` command, run as a user runs it; the numpy and safetensors packages check its files."""

import json
import os
import re
import shutil
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx.reference
import pytest
import safetensors.numpy
from onnx import TensorProto, helper

COMMAND = shutil.which("caesura")
pytestmark = pytest.mark.skipif(COMMAND is None, reason="the caesura command is not on PATH (. build/activate)")


def run(*arguments, expect=0, **environment):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False,
                          env=os.environ | {name: str(value) for name, value in environment.items()})
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
    for word in ("caesura", "asserts", "compiler", "oneDNN", "ONNX", "instruction set", "threads", "options"):
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
    assert "give --dim batch=..." in run("inspect", tmp_path / "net.onnx").stdout
    assert "give --dim batch=..." in run("inspect", tmp_path / "net.onnx", "--plan", expect=1).stderr
    step = run("inspect", tmp_path / "net.onnx", "--dim", "batch=5", "--loss", "mse", "--plan").stdout
    assert "memory of a training step" in step and "AdamW" in step
    assert [line.split()[-2:] for line in step.splitlines() if "optimizer state" in line] == [["96", "B"]]  # two of each weight
    assert "cannot be opened" in run("inspect", tmp_path / "none.onnx", expect=1).stderr


def test_inspect_cpu_fallback(tmp_path):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        net (float[N, 4] x, int64 rows) => (float[A, B] y) <int64[1] axis = {0}, int64[1] rest = {-1}> {
            [unsqueeze] one = Unsqueeze (rows, axis)
            [shape] shape = Concat <axis = 0> (one, rest)
            y = Reshape (x, shape)
        }""")
    onnx.save(model, tmp_path / "net.onnx")
    shapes = ["--dim", "N=6", "--cpu-fallback"]
    on = run("inspect", tmp_path / "net.onnx", *shapes, "on").stdout
    assert "shape chains: on; copies a run 1 -> 0 to the host, 1 -> 0 to a device" in on
    assert "moved shape: made on the host by [Concat 'shape']" in on
    off = run("inspect", tmp_path / "net.onnx", *shapes, "off").stdout
    assert "shape chains: off; copies a run 1 -> 1 to the host" in off and "moved" not in off
    run("inspect", tmp_path / "net.onnx", *shapes, "sometimes", expect=2)


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


def write_classifier(path):
    rng = np.random.default_rng(1)
    weights = {
        "w1": rng.standard_normal((8, 16)) * 0.3,
        "b1": np.zeros(16),
        "w2": rng.standard_normal((16, 3)) * 0.3,
        "b2": np.zeros(3),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


@pytest.fixture
def classifier(tmp_path):
    """A folder with net.onnx and data.npz: three clusters in eight dims."""
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 3, 300).astype(np.int32)
    points = np.eye(3, 8)[labels] * 3 + rng.standard_normal((300, 8))
    np.savez(tmp_path / "data.npz", points=points, labels=labels)
    write_classifier(tmp_path / "net.onnx")
    return tmp_path


def train(folder, *arguments, rate="1e-2", expect=0):
    feeds = ("--feed", "x=points", "--target", "labels", "--seed", "3", "--lr", rate)
    return run("train", folder / "net.onnx", "--data", folder / "data.npz", *feeds, *arguments, expect=expect)


def test_train(classifier):
    done = train(classifier, "--epochs", "20", "--schedule", "cosine", "--warmup", "5", "--clip", "1", "--log",
                 classifier / "log.csv", "--output", classifier / "trained.onnx", "--best", classifier / "best.ckpt")
    assert "270 examples to train on, 30 to validate with" in done.stdout
    rows = (classifier / "log.csv").read_text().splitlines()
    assert rows[0] == "update,learning_rate,loss,validation_loss,metric" and len(rows) == 161
    assert float(rows[-1].split(",")[4]) > 0.9  # accuracy
    onnx.checker.check_model(onnx.load(classifier / "trained.onnx"))
    tensors = safetensors.numpy.load_file(classifier / "best.ckpt")
    assert tensors["parameter/w1"].shape == (8, 16) and any(name.startswith("optimizer/") for name in tensors)


@pytest.mark.parametrize("early", [["--eager"], ["--commit", "eager-consume"]])
def test_options_of_the_session(classifier, early):
    for other in (["--clip", "1"], ["--precision", "fp16"], ["--refuse-nonfinite"]):
        told = train(classifier, *early, *other, expect=1).stderr
        assert f"--commit eager-consume and {' '.join(other[:1])}" in told and "do not go together" in told
    given = ("train", classifier / "net.onnx", "--data", classifier / "data.npz", "--feed", "x=points", "--target", "labels")
    run(*given, *early, "--epochs", "1", "--memory-budget", 1 << 40, "--seed", (1 << 64) - 1)
    for wrong in (["--threads", 1 << 40], ["--memory-budget", -1], ["--loss", "l3"], ["--accumulate", 0]):
        run(*given, *wrong, expect=2)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_train_in_mixed_precision(classifier, precision):
    train(classifier, "--epochs", "20", "--precision", precision, "--log", classifier / "log.csv", "--checkpoint",
          classifier / "c")
    rows = (classifier / "log.csv").read_text().splitlines()
    assert float(rows[-1].split(",")[4]) > 0.9  # accuracy
    tensors = safetensors.numpy.load_file(classifier / "c")
    assert all(tensor.dtype == np.float32 for tensor in tensors.values())
    with safetensors.safe_open(classifier / "c", "np") as file:
        assert ("property/session.loss_scale" in file.metadata()) == (precision == "fp16")


def test_memory_budget(classifier):
    message = train(classifier, "--steps", "2", "--memory-budget", "100", expect=1).stderr
    assert "memory_budget: expected at least" in message and "got 100" in message
    train(classifier, "--steps", "2", "--memory-budget", "100000000")


def test_resume_is_exact(classifier):
    """40 steps and 60 resumed steps equal 100 steps bit for bit, within epochs and with accumulation."""
    common = ("--accumulate", "2", "--validation-part", "0.2")
    train(classifier, *common, "--steps", "100", "--checkpoint", classifier / "straight")
    train(classifier, *common, "--steps", "40", "--checkpoint", classifier / "parts")
    again = train(classifier, *common, "--steps", "100", "--checkpoint", classifier / "parts", "--resume")
    assert "going on after update 40" in again.stdout
    straight, parts = (safetensors.numpy.load_file(classifier / name) for name in ("straight", "parts"))
    same(parts, straight)
    wrong = train(classifier, *common, "--batch", "8", "--checkpoint", classifier / "parts", "--resume", expect=1)
    assert "batch 32 instead of 8" in wrong.stderr


def scores(folder, arrays):
    """Returns the outputs of the trained classifier in `folder`, by ONNX's reference."""
    session = onnx.reference.ReferenceEvaluator(onnx.load(folder / "trained.onnx"))
    return session.run(None, {"x": arrays["points"].astype(np.float32)})[0]


def test_evaluate_and_predict(classifier):
    train(classifier, "--epochs", "5", "--output", classifier / "trained.onnx", "--checkpoint", classifier / "c")
    arrays = dict(np.load(classifier / "data.npz"))
    want = scores(classifier, arrays)
    right = (want.argmax(1) == arrays["labels"]).mean()
    shifted = want - want.max(1, keepdims=True)
    loss = (np.log(np.exp(shifted).sum(1)) - shifted[np.arange(300), arrays["labels"]]).mean()
    data = ("--data", classifier / "data.npz", "--feed", "x=points")
    found = json.loads(run("evaluate", classifier / "trained.onnx", *data, "--target", "labels", "--batch", "7", "--json", "-").stdout)
    assert found["examples"] == 300 and found["accuracy"] == pytest.approx(right)
    assert found["loss"] == pytest.approx(loss, rel=1e-4)
    # Targets that the loss ignores count neither way.
    np.savez(classifier / "padded.npz", points=arrays["points"], labels=np.where(np.arange(300) < 100, -100, arrays["labels"]).astype("i4"))
    text = run("evaluate", classifier / "trained.onnx", "--data", classifier / "padded.npz", *data[2:], "--target", "labels", "--json", "-")
    assert json.loads(text.stdout)["accuracy"] == pytest.approx((want.argmax(1) == arrays["labels"])[100:].mean())
    # The untrained model with a checkpoint's parameters is the trained model.
    text = run("evaluate", classifier / "net.onnx", "--checkpoint", classifier / "c", *data, "--target", "labels").stdout
    assert f"loss {found['loss']:.4g}"[:9] in text and f"accuracy {100 * right:.1f}%" in text and "over 300 examples" in text
    printed = run("predict", classifier / "trained.onnx", *data, "--batch", "7", "--output", classifier / "y.npz").stdout
    assert "y  float32[300, 3]" in printed
    np.testing.assert_allclose(np.load(classifier / "y.npz")["y"], want, rtol=1e-4, atol=1e-5)
    run("predict", classifier / "net.onnx", "--checkpoint", classifier / "c", *data, "--outputs", "y", "--output", classifier / "y.npy")
    np.testing.assert_array_equal(np.load(classifier / "y.npy"), np.load(classifier / "y.npz")["y"])


def test_evaluate_and_predict_say_what_is_wrong(classifier):
    data = ("--data", classifier / "data.npz", "--feed", "x=points")
    assert "no array 'target'" in run("evaluate", classifier / "net.onnx", *data, expect=1).stderr
    write_model(classifier / "other.onnx")
    train(classifier, "--steps", "1", "--checkpoint", classifier / "c")
    message = run("predict", classifier / "other.onnx", "--checkpoint", classifier / "c", *data, "--output", "y.npz", expect=1).stderr
    assert all(f"the model has no initializer '{name}'" in message for name in ("b1", "b2", "w1", "w2"))
    sum_all = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[N,8] x) => (float y) { y = ReduceSum <keepdims = 0> (x) }')
    onnx.save(sum_all, classifier / "sum.onnx")
    message = run("predict", classifier / "sum.onnx", *data, "--output", classifier / "y.npz", expect=1).stderr
    assert "output 'y' is float32[] for 32 examples: expected one row for each" in message


def test_options_from_a_file(classifier):
    train(classifier, "--steps", "30", "--output", classifier / "by_hand.onnx")
    (classifier / "run.toml").write_text(f"""[train]
data = "{classifier / 'data.npz'}"
feed = ["x=points"]
target = "labels"
seed = 3
lr = 1e-2
steps = 20
""")
    run("train", classifier / "net.onnx", "--config", classifier / "run.toml", "--steps", "30", "--output",
        classifier / "by_file.onnx")
    assert (classifier / "by_file.onnx").read_bytes() == (classifier / "by_hand.onnx").read_bytes()
    (classifier / "wrong.toml").write_text("[train]\nstep = 20\n")
    assert "step" in train(classifier, "--config", classifier / "wrong.toml", expect=2).stderr


def test_inspect_as_json(classifier):
    found = json.loads(run("inspect", classifier / "net.onnx", "--dim", "batch=5", "--loss", "cross_entropy", "--json", "-").stdout)
    assert found["inputs"] == [{"name": "x", "type": "float32[batch, 8]"}]
    assert found["parameters"] == {"tensors": 4, "values": 8 * 16 + 16 + 16 * 3 + 3, "bytes": 4 * 195}
    assert {row["op"]: row["count"] for row in found["ops"]} == {"Gemm": 2, "Relu": 1}
    assert found["missing_kernels"] == [] and found["missing_gradients"] is None
    assert found["memory of a training step"]["arena"] > found["memory of a run"]["arena"] > 0


def test_bench(classifier):
    times = ("--dim", "batch=4", "--seconds", "0.02", "--rounds", "2")
    rows = json.loads(run("bench", classifier / "net.onnx", *times, "--loss", "cross_entropy", "--json", "-").stdout)
    assert [row["name"] for row in rows] == ["run", "training step"]
    for row in rows:
        assert row["runs"] >= 2 and 0 < row["least_ms"] <= row["median_ms"] <= row["p90_ms"] <= row["p99_ms"]
    assert "give --dim batch=..." in run("bench", classifier / "net.onnx", expect=1).stderr
    np.savez(classifier / "x.npz", x=np.zeros((4, 8), np.float32))
    assert "median" in run("bench", classifier / "net.onnx", "--inputs", classifier / "x.npz", *times[2:]).stdout


def report_data(path):
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(), re.S)[1])


def test_train_reports(classifier):
    page, tensorboard = classifier / "report.html", classifier / "events"
    train(classifier, "--epochs", "4", "--accumulate", "2", "--log", classifier / "log.csv", "--report", page,
          "--tensorboard", tensorboard)
    rows = [row.split(",") for row in (classifier / "log.csv").read_text().splitlines()[1:]]
    data = report_data(page)
    curves = data["curves"]
    np.testing.assert_allclose([p[1] for p in curves["points"]], [float(row[2]) for row in rows], rtol=1e-7)
    validated = [row for row in rows if row[3]]
    np.testing.assert_allclose(curves["validations"], [[int(r[0]), float(r[3]), float(r[4])] for r in validated], rtol=1e-7)
    assert curves["metric"] == "accuracy" and ["optimizer", "adamw"] in data["options"]
    assert len(data["runs"]) == 1 and "AdamWUpdate" in {step["op"] for step in data["runs"][0]["steps"]}
    [events] = tensorboard.iterdir()
    content = events.read_bytes()
    assert content.count(b"loss/train") == content.count(b"learning_rate") == len(rows)
    assert content.count(b"loss/validation") == content.count(b"accuracy") == len(validated)


def test_train_reports_a_run_that_fails(classifier):
    train(classifier, "--epochs", "4", "--report", classifier / "report.html", rate="1e30", expect=1)
    data = report_data(classifier / "report.html")
    assert data["curves"]["points"] and data["runs"] == []


def test_report(classifier):
    page = classifier / "report.html"
    assert "wrote" in run("report", classifier / "net.onnx", "--dim", "batch=4", "--loss", "cross_entropy", "--output", page).stdout
    ops = {step["op"] for step in report_data(page)["runs"][0]["steps"]}
    assert "SoftmaxCrossEntropyLossGrad" in ops
    run("report", classifier / "net.onnx", "--dim", "batch=4", "--output", page)  # a run: no loss, nothing is trained
    assert {step["phase"] for step in report_data(page)["runs"][0]["steps"]} == {"forward"}
    assert "give --dim batch=..." in run("report", classifier / "net.onnx", expect=1).stderr


def test_env():
    text = run("env", CAESURA_VERBOSE="0").stdout
    for word in ("caesura", "instruction set", "processor", "memory", "CAESURA_VERBOSE"):
        assert word in text
    found = json.loads(run("env", "--json", "-", CAESURA_PYTHON=sys.executable).stdout)
    assert f"numpy {np.__version__}" in found["Python packages"]
    assert found["PyTorch library"].startswith(("loaded, built with PyTorch ", "libcaesura_torch.so was not built", "not loaded: "))


def test_env_says_which_cache_is_not_written_to(tmp_path):
    (tmp_path / "file").write_text("")

    def row(**environment):
        return json.loads(run("env", "--json", "-", CAESURA_PYTHON="/no/python", **environment).stdout)

    below = tmp_path / "file" / "programs"
    assert row(CAESURA_PROGRAM_CACHE=tmp_path / "new" / "one")["program cache"] == f"{tmp_path / 'new' / 'one'} (writable)"
    assert row(CAESURA_PROGRAM_CACHE=below)["program cache"] == f"{below} (not writable: {tmp_path / 'file'}: Not a directory)"
    assert row(CAESURA_PROGRAM_CACHE="off")["program cache"] == "off"
    assert row(CAESURA_PROGRAM_CACHE="", XDG_CACHE_HOME="", HOME="")["program cache"].startswith("off: neither HOME nor")
    assert row()["PyTorch library"] == "unknown: '/no/python' does not run"
    assert not (tmp_path / "new").exists()


def test_cache(tmp_path):
    kept = tmp_path / "mine.txt"
    kept.write_text("not a program")
    for i in range(3):
        program = tmp_path / (f"{i}" * 64)
        program.write_bytes(b"x" * 1024)
        os.utime(program, (time.time() - 86400 * 10 * i,) * 2)
    kernel = tmp_path / ("a" * 64)
    kernel.write_bytes(b"caesura kernel 1\nand more")
    os.utime(kernel, (time.time() - 86400 * 30,) * 2)
    (tmp_path / ("f" * 64)).symlink_to(kept)
    folder = {"CAESURA_PROGRAM_CACHE": tmp_path}
    assert "3 programs and 1 kernels, 0.0 of 256 MiB" in run("cache", "ls", **folder).stdout
    found = json.loads(run("cache", "ls", "--json", "-", **folder).stdout)
    assert [row["name"][0] for row in found["programs"]] == ["0", "1", "2", "a"] and found["folder"] == str(tmp_path)
    assert [row["kind"] for row in found["programs"]] == ["program"] * 3 + ["kernel"]
    assert "1 programs and 1 kernels removed" in run("cache", "clear", "--unused-days", "15", **folder).stdout
    assert "2 programs and 0 kernels removed" in run("cache", "clear", **folder).stdout
    assert kept.exists() and "0 programs and 0 kernels, 0.0 of" in run("cache", "ls", **folder).stdout
    run("cache", expect=2)


def test_train_says_what_is_wrong(classifier):
    net, data = classifier / "net.onnx", classifier / "data.npz"
    message = run("train", net, "--data", data, expect=1).stderr
    assert "no array 'x' for input 'x'" in message and "no array 'target' for the loss" in message
    assert "'points'" in message and "'labels'" in message
    assert "sgd has no --beta1" in train(classifier, "--optimizer", "sgd", "--beta1", "0.5", expect=1).stderr
    assert "--resume needs --checkpoint" in train(classifier, "--resume", expect=1).stderr
    assert "float64" in run("train", net, "--data", data, "--feed", "x=points", "--target", "points", expect=1).stderr
    train(classifier, "--optimizer", "nonsense", expect=2)
    assert "the loss is" in train(classifier, "--optimizer", "sgd", rate="1e30", expect=1).stderr


def test_train_on_text(tmp_path):
    text = "the quick brown fox jumps over the lazy dog. " * 200
    (tmp_path / "a.txt").write_text(text)
    rng = np.random.default_rng(0)
    characters = len(set(text))
    weights = {"table": rng.standard_normal((characters, 16)) * 0.1, "head": rng.standard_normal((16, characters)) * 0.1}
    nodes = [helper.make_node("Gather", ["table", "tokens"], ["e"]), helper.make_node("MatMul", ["e", "head"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "bigram",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 32, characters])],
        [onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "bigram.onnx")
    run("train", tmp_path / "bigram.onnx", "--data", tmp_path / "a.txt", "--batch", "8", "--steps", "150", "--lr", "5e-2",
        "--log", tmp_path / "log.csv")
    losses = [float(row.split(",")[2]) for row in (tmp_path / "log.csv").read_text().splitlines()[1:]]
    assert losses[0] > 3 and losses[-1] < 1.2


def test_wrap_model_makes_one_node(tmp_path):
    inner = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[N,2] x) => (float[N,2] y) { y = Tanh (x) }')
    (tmp_path / "inner.onnx").write_bytes(inner.SerializeToString())
    arguments = ["wrap-model", tmp_path / "inner.onnx", "--runtime", "caesura", "--output"]
    printed = run(*arguments, tmp_path / "one.onnx", "--option", "threads=1").stdout
    assert "float32[d0, 2]" in printed
    (node,) = onnx.load(tmp_path / "one.onnx").graph.node
    assert (node.domain, node.op_type, node.name) == ("ai.caesura", "ModelOp", "model")
    assert helper.get_node_attr_value(node, "input_names") == [b"x"]
    assert helper.get_node_attr_value(node, "output_types") == [b"float32[d0, 2]"]
    assert helper.get_node_attr_value(node, "option_values") == [b"1"]
    held = onnx.numpy_helper.to_array(helper.get_node_attr_value(node, "model")).tobytes()
    assert held == inner.SerializeToString()

    run(*arguments, tmp_path / "named.onnx", "--by-name")
    (node,) = onnx.load(tmp_path / "named.onnx").graph.node
    assert helper.get_node_attr_value(node, "model_file") == b"inner.onnx"
    assert "not beneath" in run(*arguments, tmp_path / "sub" / "named.onnx", "--by-name", expect=1).stderr
    assert "known are: threads" in run(*arguments, tmp_path / "x.onnx", "--option", "thread=1", expect=1).stderr
    assert "there is no runtime 'none'" in run("wrap-model", tmp_path / "inner.onnx", "--runtime", "none", "--output",
                                               tmp_path / "x.onnx", expect=1).stderr
    assert "--gradient" in run("wrap-model", "--help").stdout
