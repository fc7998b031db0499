# SPDX-License-Identifier: Apache-2.0
"""The benchmark command: its statistics, its processes and its report. No test asserts a time."""

import json
import multiprocessing.connection
import os
import re
import runpy
import subprocess
import sys
import types

import pytest
from fork_server import context

from caesura.bench import measure, processes, report, statistics, workloads
from caesura.bench.measure import run_workload

LOSSES = ["tiny-mlp", "mlp", "digits-cnn", "small-gpt", "small-llama"]


def test_median_interval_is_that_of_the_sign_test():
    # The 6th and the 15th of 20 values: 2 * sum(C(20, i) for i < 6) / 2^20 = 4.1% are outside.
    assert statistics.median_interval(range(1, 21)) == (6, 15)
    assert statistics.median_interval([5, 1, 4, 2, 3, 6]) == (1, 6)  # 2 / 2^6 = 3.1%
    assert statistics.median_interval([1, 2, 3, 4, 5]) is None       # 2 / 2^5 = 6.3%
    assert statistics.median_interval([1, 2, 3, 4, 5], confidence=0.9) == (1, 5)


def test_ratio_pairs_rounds():
    # A machine that is three times slower in the last rounds slows both: the ratio stays.
    ours, theirs = [1.0] * 4 + [3.0] * 4, [2.0] * 4 + [6.0] * 4
    assert statistics.ratio(ours, theirs) == (0.5, 0.5, 0.5)
    assert statistics.ratio([1, 2], [2, 2]) == (0.75, None, None)
    with pytest.raises(ValueError):
        statistics.ratio([1, 2], [1])


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_no_system_follows_itself(count):
    """A system that ran twice in succession would find warm caches; the others would not."""
    calls, turns = [], measure._Turns(None, 1, "")

    class Named:
        def __init__(self, name):
            self.round = lambda: calls.append(name)

    for i in range(count):
        turns._workers[i], turns.results[i] = Named(i), {"rounds": []}
    for i in range(2 * count):
        turns.round(i)
    assert all(a != b for a, b in zip(calls, calls[1:])) and {calls.count(i) for i in range(count)} == {2 * count}


def test_spread_and_losses():
    assert statistics.spread([4, 1, 3, 2, 5]) == (3, 2, 4)
    assert statistics.spread([7]) == (7, 7, 7)
    assert statistics.largest_difference([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)
    assert statistics.largest_difference([float("nan")], [1.0]) == float("inf")


def _work(stdin, stdout, stderr, module, arguments, environment):
    import torch
    for number, end in enumerate((stdin, stdout, stderr)):
        os.dup2(end.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    threads = int(environment["OMP_NUM_THREADS"])
    torch.set_num_threads(threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    sys.argv[:], sys.stdin = ["worker", *arguments], open(0, closefd=False)
    runpy.run_module(module, run_name="__main__")


class Forked:
    """A worker as subprocess.Popen starts it, but in a fork of the tests' server, which spares five seconds of imports."""

    def __init__(self, command, *, stderr, env, **_):
        python, _, module, *arguments = command
        assert python == sys.executable
        processes_of = context()
        theirs_in, ours_in = processes_of.Pipe(duplex=False)
        ours_out, theirs_out = processes_of.Pipe(duplex=False)
        log = multiprocessing.connection.Connection(os.dup(stderr.fileno()))
        self._process = processes_of.Process(target=_work, args=(theirs_in, theirs_out, log, module, arguments, env))
        self._process.start()
        self.stdin, self.stdout = os.fdopen(os.dup(ours_in.fileno()), "w"), os.fdopen(os.dup(ours_out.fileno()))
        for end in (theirs_in, ours_in, ours_out, theirs_out, log):
            end.close()
        self.kill = self._process.kill

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("worker", timeout)
        return self._process.exitcode


@pytest.fixture
def forked(monkeypatch):
    """Workers are forks. Those of the command, in a test of its own, are new processes."""
    monkeypatch.setattr(processes, "subprocess", types.SimpleNamespace(**vars(subprocess) | {"Popen": Forked}))


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("name", LOSSES)
def test_losses_follow_eager(name):
    """The first 5 steps, from the same weights on the same batches."""
    fused = ["eager-fused"] if name == LOSSES[0] else []
    result = run_workload(workloads.find(name), ["caesura", *fused, "eager"], rounds=1, threads=1)
    systems = result["systems"]
    assert not [s for s in systems.values() if "error" in s], systems
    assert len(systems["caesura"]["losses"]) == 5
    assert len(set(systems["caesura"]["losses"])) == 5, "nothing is learnt"
    assert systems["caesura"]["loss_difference"] < 1e-4
    assert systems["caesura"]["step_peak_bytes"] > 0
    assert report.table(result).count("\n") == 3 + len(fused)


@pytest.mark.usefixtures("forked")
def test_bfloat16_follows_eager():
    systems = run_workload(workloads.find("small-gpt-bf16"), ["caesura", "eager"], rounds=1, threads=1)["systems"]
    assert systems["caesura"]["loss_difference"] < 1e-2


def command(*arguments: str) -> str:
    """Returns the command's output."""
    return subprocess.run([sys.executable, "-m", "caesura.bench", *arguments], check=True, capture_output=True,
                          text=True).stdout


def test_command_writes_table_and_json(tmp_path):
    file, plot = tmp_path / "bench.json", tmp_path / "bench.png"
    text = command("--workload", "tiny-mlp", "--systems", "caesura", "eager", "bound", "--rounds", "6",
                   "--threads", "1", "--json", str(file), "--plot", str(plot))
    pair = r"\[[\d.]+, [\d.]+\]"
    assert re.search(rf"^  eager +[\d.]+ +{pair} +[\d.]+ +{pair} +\d+%", text, re.MULTILINE), text
    results = json.loads(file.read_text())
    assert results["rounds"] == 6
    assert results["machine"]["asserts"] == ("This build of caesura has asserts" in text)
    (workload,) = results["workloads"]
    assert workload["name"] == "tiny-mlp" and workload["parameters"] == 6792
    # Forward 3, weights 3, inputs 2: the first layer's input needs no gradient. 2 * 16 * (2048 * 2 + 4608 * 3).
    assert workload["matrix_flops"] == 2 * 16 * (2 * 32 * 64 + 3 * (64 * 64 + 64 * 8))
    eager = workload["systems"]["eager"]
    assert len(eager["rounds"]) == 6
    assert eager["caesura_ratio"]["low"] <= eager["caesura_ratio"]["median"] <= eager["caesura_ratio"]["high"]
    assert eager["seconds"]["low"] <= eager["seconds"]["median"] <= eager["seconds"]["high"]
    assert workload["systems"]["bound"]["products"] > 0
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("forked")
def test_systems_wait_where_memory_is_short(monkeypatch):
    started = []
    start = measure._Turns.start
    monkeypatch.setattr(measure._Turns, "start", lambda turns, system: (started.append(system), start(turns, system)))
    monkeypatch.setattr(measure, "available_bytes", lambda: 0)
    order = ["caesura", "eager", "bound", "eager-foreach"]
    systems = run_workload(workloads.find("tiny-mlp"), order, rounds=2, threads=1)["systems"]
    assert started == ["caesura", "eager", "bound", "caesura", "bound", "eager-foreach"]
    assert list(systems) == order
    assert all(len(s["rounds"]) == 2 and "caesura_ratio" in s for name, s in systems.items() if name not in measure.COMPARED)
    assert systems["eager-foreach"]["loss_difference"] < 1e-4  # to eager's, of the first lap


def test_missing_peer_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CAESURA_PREFIX", str(tmp_path))
    result = run_workload(workloads.find("tiny-mlp"), ["jax"], rounds=1, threads=1)
    assert result["systems"]["jax"] == {"error": f"not installed in {tmp_path}/peers/jax",
                                        "install": "cmake/setup.sh --peers"}
    assert "install: cmake/setup.sh --peers" in report.table(result)


def test_failing_system_drops_out():
    """A system that cannot train the workload reports the reason, and the others continue."""
    if not (processes.peers_folder() / "jax/bin/python").exists():
        pytest.skip("jax is not installed")
    systems = run_workload(workloads.find("digits-cnn"), ["jax", "eager"], rounds=1, threads=1)["systems"]
    assert "no JAX step" in systems["jax"]["error"]
    assert len(systems["eager"]["rounds"]) == 1


def test_help_teaches():
    text = command("--help")
    for word in ["chargpt-perturbed", "compile-step", "cmake/setup.sh --peers", "caesura/it", "--compile-cache"]:
        assert word in text
