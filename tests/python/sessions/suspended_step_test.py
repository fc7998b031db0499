# SPDX-License-Identifier: Apache-2.0
"""Steps that stop in their middle: in this process, at signals, and taken up by another process after a kill."""

import os
import signal
import threading

import numpy as np
import onnx
import pytest
from fork_server import Program

import caesura

# A process that trains with PyTorch's DataLoader: shuffled, with noise on each batch. Arguments: where it is saved; the
# step of the plan before which the 38th batch stops and the process kills itself, or -1.
CHILD = '''
import os, signal, sys
import numpy as np
import onnx
import torch
import caesura

MODEL = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,8] x) => (float[N,3] scores) {
  h = MatMul (x, w0)
  rate = Constant <value_float = 0.25> ()
  train = Constant <value_int = 1> ()
  on = Cast <to = 9> (train)
  d, mask = Dropout (h, rate, on)
  r = Relu (d)
  scores = MatMul (r, w1)
}"""
path, at = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(0)
model = onnx.parser.parse_model(MODEL)
for name, shape in {"w0": (8, 16), "w1": (16, 3)}.items():
    model.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
session = caesura.TrainingSession(model, target="labels", optimizer=caesura.optim.AdamW(lr=1e-2), schedule="cosine",
                                  total_steps=100, seed=7, threads=1)
done = session.restore(path)["batches"] if os.path.exists(path) else 0
data = torch.utils.data.TensorDataset(torch.from_numpy(rng.standard_normal((200, 8)).astype(np.float32)),
                                      torch.from_numpy(rng.integers(0, 3, 200)))
batch = 0
while batch < 100:
    order = torch.Generator().manual_seed(batch // 10)  # an epoch has ten batches
    for x, labels in torch.utils.data.DataLoader(data, batch_size=20, shuffle=True, generator=order):
        if batch == 100:
            break
        batch += 1
        if batch <= done:
            continue
        x = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(batch))
        if at >= 0 and batch == 38:
            session.suspend_at(at)
        try:
            loss = session.resume() if session.suspended else session.step({"x": x, "labels": labels})
        except caesura.Suspended:
            session.save(path, {"batches": batch - 1, "note": "in the middle"})
            os.kill(os.getpid(), signal.SIGKILL)
np.savez(path + ".npz", loss=loss, updates=session.updates, rate=session.learning_rate, **session.parameters())
'''

MODEL = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,3] x) => (float[N,2] scores) <float[3,2] w = {0.5, -0.25, 0.125, 1, 0, -1}> {
  h = MatMul (x, w)
  scores = Tanh (h)
}"""


def feeds(seed=0):
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((4, 3)).astype(np.float32), "labels": rng.integers(0, 2, 4)}


def open_session(**options):
    options = {"optimizer": caesura.optim.AdamW(lr=0.1), "threads": 1} | options
    return caesura.TrainingSession(onnx.parser.parse_model(MODEL), target="labels", **options)


@pytest.fixture
def expected():
    session = open_session()
    return [session.step(feeds(n)) for n in range(3)], session.parameters()["w"]


def check(session, expected, first):
    losses, w = expected
    assert [first] + [session.step(feeds(n)) for n in (1, 2)] == losses
    np.testing.assert_array_equal(session.parameters()["w"], w)


def steps_of(session):
    return sum(line.split(" ", 1)[0].isdigit() for line in session.plan(feeds())[0].splitlines()[1:])


def test_before_every_step(expected, tmp_path):
    count = steps_of(open_session())
    assert count > 4
    for at in range(count):
        begins, ends = open_session(), open_session()
        begins.suspend_at(at)
        batch = feeds()
        with pytest.raises(caesura.Suspended, match=f"before step {at} of {count}"):
            begins.step(batch)
        batch["x"][:] = np.nan  # the caller's own again
        assert begins.suspended
        begins.save(tmp_path / "step", {"position": at, "rate": 0.5, "name": "x"})
        assert ends.restore(tmp_path / "step") == {"position": at, "rate": 0.5, "name": "x"}
        assert ends.suspended and ends.step_differences == []
        check(ends, expected, ends.resume())
        check(begins, expected, begins.resume())


def test_suspend_and_drop(expected):
    session = open_session()
    assert not session.suspend and not session.suspended
    session.suspend = True
    for call in (lambda: session.step(feeds()), session.resume, lambda: session.evaluate(feeds())):
        with pytest.raises(caesura.Suspended):
            call()
    assert session.suspended
    with pytest.raises(ValueError, match="a step waits"):
        session.step(feeds())
    session.drop()
    with pytest.raises(ValueError, match="no step waits"):
        session.resume()
    session.suspend = False
    check(session, expected, session.step(feeds()))


def test_deadlines(expected):
    session = open_session()
    session.suspend_after(0)
    with pytest.raises(caesura.Suspended):
        session.step(feeds())
    session.suspend_after(3600)
    first = session.resume()
    session.suspend_after(None)
    check(session, expected, first)


def test_signals(expected):
    session, other = open_session(), open_session()
    with session.suspend_on(signal.SIGUSR1, signal.SIGUSR2):
        session.step(feeds())
        os.kill(os.getpid(), signal.SIGUSR2)
        with pytest.raises(caesura.Suspended):
            session.step(feeds(1))
        session.suspend = False
        session.resume()
    with other.suspend_on(signal.SIGUSR1):  # one after the other
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(caesura.Suspended):
            while True:
                other.step(feeds())


def test_another_program_refuses(tmp_path):
    session = open_session()
    session.suspend_at(2)
    with pytest.raises(caesura.Suspended):
        session.step(feeds())
    session.save(tmp_path / "step")
    with pytest.raises(ValueError, match="does not fit"):
        open_session(optimizer=caesura.optim.SGD()).restore(tmp_path / "step")


def test_a_hundred_steps_are_37_a_kill_and_63(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "child.py").write_text(CHILD)

    def child(name, at, expect):
        done = Program(tmp_path / "child.py", tmp_path / name, at).result()
        assert done.returncode == expect, done.stderr

    child("straight", -1, 0)
    child("killed", 9, -signal.SIGKILL)
    child("killed", -1, 0)
    straight, killed = (np.load(tmp_path / f"{name}.npz") for name in ("straight", "killed"))
    assert straight["updates"] == 100 and sorted(straight) == sorted(killed)
    for name in straight:
        np.testing.assert_array_equal(killed[name], straight[name])


def test_a_split_modules_run_is_taken_up_by_another(tmp_path):
    def module(w=1.0):
        opened = caesura.SplitModule(onnx.parser.parse_model(MODEL), inputs=["x"], threads=1)
        opened.set_parameters({"w": w * opened.parameters()["w"]})
        return opened

    x, dy = feeds()["x"], np.ones((4, 2), np.float32)
    begins, ends = module(), module(2.0)
    run = begins.forward({"x": x})
    expected = run.backward({"scores": dy}, retain_graph=True)
    run.save(tmp_path / "run")
    run.save(tmp_path / "run")  # it still waits, and the file is replaced
    taken = ends.load_run(tmp_path / "run")
    np.testing.assert_array_equal(taken.outputs["scores"], run.outputs["scores"])
    for ended in (taken, run):
        gradients = ended.backward({"scores": dy})  # with the parameters that the run began with
        assert list(gradients) == ["x", "w"]
        for name in gradients:
            np.testing.assert_array_equal(gradients[name], expected[name])
    with pytest.raises(ValueError, match="the run is over"):
        run.save(tmp_path / "run")
    session = open_session()
    session.save(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="holds no run that waits"):
        ends.load_run(tmp_path / "checkpoint")
    with pytest.raises(FileNotFoundError):
        ends.load_run(tmp_path / "none")
