# SPDX-License-Identifier: Apache-2.0
"""`caesura train`: runs that are stopped, between updates or inside of steps (--snapshot-on), and go on there."""

import contextlib
import os
import re
import signal
import subprocess
import time

import pytest
import safetensors.numpy
from command_test import COMMAND, classifier, pytestmark, run, same, train  # noqa: F401


@contextlib.contextmanager
def started(*arguments, stdout=subprocess.PIPE, env=None):
    """A process of the command that does not outlive the block, whatever ends it."""
    with subprocess.Popen([COMMAND, *map(str, arguments)], stdout=stdout, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def interrupted(signals, rounds, *arguments):
    """Runs a command that saves at signals and resumes again and again, to its end; returns how often it was stopped in
    the middle of a step, and how often altogether. `signals` come in turn, at different times after the first update."""
    inside = stops = 0
    for n in range(rounds + 200):
        with started(*arguments) as process:
            if n < rounds:
                process.stderr.readline()  # the progress of the first update
                time.sleep(0.007 * (n % 5))
                process.send_signal(signals[n % len(signals)])
            _, errors = process.communicate(timeout=60)
        if process.returncode == 0:
            assert stops > 0, "the command was never stopped"
            return inside, stops
        stops += 1
        inside += "stopped in the middle of update" in errors
        assert (process.returncode == 3 and "stopped " in errors) or process.returncode == -signal.SIGKILL, errors
    pytest.fail("the command never ended")


@pytest.mark.parametrize("killed", [False, True])
def test_a_run_that_is_stopped_inside_of_steps_is_the_same_run(classifier, killed):  # noqa: F811
    """Log, parameters and optimizer state are bit for bit those of an undisturbed run: with snapshots at signals, and
    with kill -9 in between, after which the run goes on from the last checkpoint.
    """
    arguments = ["train", classifier / "net.onnx", "--data", classifier / "data.npz", "--feed", "x=points",
                 "--target", "labels", "--steps", "20000", "--accumulate", "2", "--validate-every", "40", "--schedule",
                 "cosine", "--batch", "64"]
    run(*arguments, "--log", classifier / "straight.csv", "--checkpoint", classifier / "straight")
    signals = [signal.SIGUSR1, signal.SIGKILL] if killed else [signal.SIGTERM, signal.SIGUSR1]
    rounds = 200 if os.environ.get("CAESURA_LONG") else 10
    inside, stops = interrupted(signals, rounds, *arguments, "--log", classifier / "parts.csv", "--checkpoint",
                                classifier / "parts", "--snapshot-on", "SIGTERM,SIGUSR1", "--save-every", "100", "--resume")
    assert inside > 0
    print(f"{stops} runs were ended, {inside} of them inside of a step")  # for docs/guides/snapshots.md
    straight, parts = (safetensors.numpy.load_file(classifier / name) for name in ("straight", "parts"))
    same(parts, straight)
    assert (classifier / "parts.csv").read_text() == (classifier / "straight.csv").read_text()


def fill(pipe):
    """Whoever writes to the pipe next waits until somebody reads."""
    os.set_blocking(pipe, False)
    try:
        while True:
            os.write(pipe, b"\n")
    except BlockingIOError:
        os.set_blocking(pipe, True)


def wait_for(path):
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.01)


def test_a_signal_before_the_first_step_and_after_the_last_one(classifier):  # noqa: F811
    arguments = ["train", classifier / "net.onnx", "--data", classifier / "data.npz", "--feed", "x=points", "--target",
                 "labels", "--steps", "2000", "--batch", "64", "--checkpoint", classifier / "run", "--log",
                 classifier / "run.csv", "--output", classifier / "trained.onnx", "--snapshot-on", "SIGUSR1", "--resume"]
    # The command is held at its standard output.
    reader, writer = os.pipe()
    fill(writer)
    with started(*arguments, stdout=writer) as process:
        wait_for(classifier / "run.csv")
        process.send_signal(signal.SIGUSR1)
        os.read(reader, 1 << 20)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 3 and "stopped after update 0" in errors, errors
    reader, writer = os.pipe()
    with started(*arguments, stdout=writer) as process:
        assert b"parameters" in os.read(reader, 1 << 20)
        fill(writer)
        wait_for(classifier / "trained.onnx")
        time.sleep(0.1)  # what it prints last waits for room in the pipe
        process.send_signal(signal.SIGUSR1)
        os.read(reader, 1 << 20)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors


def test_stopped_and_killed(classifier):  # noqa: F811
    arguments = ["train", classifier / "net.onnx", "--data", classifier / "data.npz", "--feed", "x=points",
                 "--target", "labels", "--steps", "1000000", "--checkpoint", classifier / "c", "--save-every", "5",
                 "--resume"]
    reached = 0
    for sent in (signal.SIGINT, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
        with started(*arguments) as process:
            time.sleep(1)
            process.send_signal(sent)
            _, errors = process.communicate(timeout=60)
        with safetensors.safe_open(classifier / "c", "np") as file:
            now = int(file.metadata()["property/session.updates"].split(":")[1])
        assert now > reached
        reached = now
        if sent != signal.SIGKILL:
            assert process.returncode == 3 and f"stopped after update {now}" in errors


def test_a_step_goes_from_the_command_to_python_and_back(classifier):  # noqa: F811
    caesura = pytest.importorskip("caesura")
    arguments = ["train", classifier / "net.onnx", "--data", classifier / "data.npz", "--feed", "x=points", "--target",
                 "labels", "--steps", "5000", "--batch", "64", "--lr", "1e-3"]
    run(*arguments, "--checkpoint", classifier / "straight")
    checkpoint, resumed = classifier / "parts", (*arguments, "--checkpoint", classifier / "parts", "--resume")
    errors = ""
    while "stopped in the middle of update" not in errors:
        with started(*resumed, "--snapshot-on", "SIGUSR1") as process:
            process.stderr.readline()  # the progress of the first update
            process.send_signal(signal.SIGUSR1)
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 3, "the run was over before it was stopped inside of a step"
    # The command has one name for the target, whatever its array is called.
    session = caesura.TrainingSession(str(classifier / "net.onnx"), target="caesura.target", optimizer=caesura.optim.AdamW(lr=1e-3))
    properties = session.restore(str(checkpoint))
    assert session.suspended and session.step_differences == []
    session.suspend = True
    with pytest.raises(caesura.Suspended) as waits:
        session.resume()
    at, steps = map(int, re.search(r"before step (\d+) of (\d+)", str(waits.value)).groups())
    session.suspend = False
    session.suspend_at(min(at + 2, steps - 1))
    with pytest.raises(caesura.Suspended):
        session.resume()
    session.save(str(checkpoint), properties)
    run(*resumed)
    same(*(safetensors.numpy.load_file(path) for path in (checkpoint, classifier / "straight")))


def test_snapshots_need_a_checkpoint(classifier):  # noqa: F811
    assert "--snapshot-on needs --checkpoint" in train(classifier, "--snapshot-on", "SIGTERM", expect=1).stderr
    assert "SIGFOO" in train(classifier, "--snapshot-on", "SIGFOO", expect=2).stderr


def test_a_refused_step_is_recorded_and_replayed(classifier):  # noqa: F811
    step = ("--optimizer", "sgd", "--refuse-nonfinite")
    done = train(classifier, *step, "--record", classifier / "nan.step", "--output", classifier / "o.onnx", rate="1e25", expect=1)
    assert "recorded in" in done.stderr and "the step was refused" in done.stderr and not (classifier / "o.onnx").exists()
    replay = ("replay", classifier / "net.onnx", classifier / "nan.step", "--optimizer", "sgd", "--lr", "1e25")
    printed = run(*replay).stdout
    assert "first node that makes a NaN: " in printed and "reads " in printed and " from " in printed
    assert "the runs agree: " in run(*replay, "--against-threads", "2").stdout
    assert "the runs agree: " in run(*replay, "--without", "row_fusion").stdout
    assert "the runs agree: " in run(*replay, "--against-isa", "x86-64-v3").stdout
    # Vectors of another width round sums otherwise.
    assert "the runs part at " in run(*replay, "--against-isa", "x86-64", "--tolerance", "0").stdout
    assert "--record needs --refuse-nonfinite" in train(classifier, "--record", classifier / "r", expect=1).stderr
    train(classifier, "--steps", "2", "--checkpoint", classifier / "c")
    assert "holds no step that waits" in run("replay", classifier / "net.onnx", classifier / "c", expect=1).stderr
