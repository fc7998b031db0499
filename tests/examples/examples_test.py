# SPDX-License-Identifier: Apache-2.0
"""Every example runs as a reader would run it, and its model learns the digits."""

import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys

import numpy as np
import onnx.parser
import pytest
from fork_server import Program

import caesura.onnxruntime

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("digits", "export_step"))


def run(folder, *command):
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accuracy(text):
    return float(re.search(r"accuracy ([\d.]+)", text).group(1))


def run_in_a_fork(script):
    """The same in a process that has imported PyTorch already."""
    done = Program(script).result()
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = FOLDER / f"{name}.py"
    text = run(tmp_path, sys.executable, script) if name == "wrap" else run_in_a_fork(script)  # one is a new process
    assert accuracy(text) > (0 if "(untrained)" in text else 0.93)


def test_the_notebook_runs(tmp_path, monkeypatch):
    """Returns the notebook's cells as one program, so that no notebook server is needed."""
    cells = json.loads((FOLDER / "five_minutes.ipynb").read_text())["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")  # results are not kept in the tree
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (tmp_path / "five_minutes.py").write_text(f"import sys\nsys.path.insert(0, {str(FOLDER)!r})\n"
                                              f"import matplotlib\nmatplotlib.use('Agg')\n{code}\n")
    monkeypatch.chdir(tmp_path)
    assert accuracy(run_in_a_fork(tmp_path / "five_minutes.py")) > 0.93


def export_step(path):
    """Writes the step of a small net with the inputs x and t; returns its session."""
    net = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        net (float[N,2] x) => (float[N,2] y) <float[2,2] w = {0.1, 0, 0, 0.1}> { y = MatMul (x, w) }""")
    session = caesura.TrainingSession(net, loss="cross_entropy", target="t", optimizer=caesura.optim.AdamW(lr=0.1))
    session.export_training(path)
    return session


@pytest.mark.skipif(shutil.which("train_in_onnxruntime") is None,
                    reason="onnxruntime's C++ headers were not there when the examples were built, or they are not on PATH")
def test_an_exported_step_trains_in_onnxruntimes_cpp(tmp_path):
    export_step(tmp_path / "step.onnx")
    losses = [float(line) for line in run(tmp_path, "train_in_onnxruntime", tmp_path / "step.onnx").split()]
    assert len(losses) == 40 and losses[-1] < 0.3 * losses[0]


def test_an_exported_step_trains_in_onnxruntime(tmp_path, monkeypatch):
    """caesura.onnxruntime stands in for onnxruntime, which the tests do without."""
    monkeypatch.setitem(sys.modules, "onnxruntime", caesura.onnxruntime)
    session = export_step(tmp_path / "step.onnx")
    x = np.random.default_rng(0).standard_normal((48, 2)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, t=(x[:, 0] > 0).astype(np.int64))
    train = runpy.run_path(str(FOLDER.parent / "exported_step" / "train_in_onnxruntime.py"))["train"]
    losses = train(tmp_path / "step.onnx", tmp_path / "data.npz", 32, 40, tmp_path / "trained.npz")
    assert len(losses) == 40 and losses[-1] < 0.3 * losses[0]
    trained = np.load(tmp_path / "trained.npz")
    session.set_parameter("w", trained["w"])
    assert session.parameters()["w"].tobytes() == trained["w"].tobytes()


def test_ranks_in_python(tmp_path):
    pytest.importorskip("torch")
    text = run(tmp_path, sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
               FOLDER.parent / "ranks" / "train_ranks.py")
    assert "2 ranks: loss" in text and accuracy(text) > 0.93


@pytest.mark.skipif(shutil.which("mpirun") is None or shutil.which("train_ranks") is None,
                    reason="Open MPI's mpirun is not installed, or the examples are not on PATH (. build/activate)")
def test_ranks_in_cpp(tmp_path, monkeypatch):
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    run(tmp_path, sys.executable, FOLDER.parent / "digits" / "export_digits.py", tmp_path)
    text = run(tmp_path, "mpirun", "--oversubscribe", "--bind-to", "none", "-n", "2", "train_ranks", tmp_path)
    assert float(re.search(r"2 ranks: loss ([\d.]+)", text).group(1)) < 0.3


@pytest.mark.skipif(shutil.which("first_example") is None, reason="the examples are not on PATH (. build/activate)")
def test_the_first_example_has_all_its_kernels(tmp_path, monkeypatch):
    """Its library has few kernels. It trains to the same bits as the whole library."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    run(tmp_path, sys.executable, FOLDER.parent / "digits" / "export_digits.py", tmp_path)
    trained = []
    for program in ("first_example", "train_digits"):
        run(tmp_path, program, tmp_path)
        trained.append((tmp_path / "digits_trained.onnx").read_bytes())
    assert trained[0] == trained[1]


@pytest.mark.parametrize("path", [*FOLDER.glob("*.py"), *FOLDER.parent.glob("continue_step/*.cc"), *FOLDER.parent.glob("ranks/*")],
                         ids=lambda path: path.name)
def test_an_example_is_short(path):
    assert len(path.read_text().splitlines()) <= 60


@pytest.mark.skipif(shutil.which("caesura") is None, reason="the caesura command is not on PATH (. build/activate)")
def test_a_run_that_is_killed_is_the_same_run(tmp_path):
    printed = run(tmp_path, sys.executable, FOLDER.parent / "preemption" / "killed_run.py", tmp_path / "out")
    assert re.search(r"killed \d+ times: 900 losses and \d+ tensors are equal, bit for bit", printed)
    assert (tmp_path / "out" / "killed.png").exists()


@pytest.mark.skipif(shutil.which("caesura") is None, reason="the caesura command is not on PATH (. build/activate)")
def test_a_slurm_job_is_queued_again(tmp_path):
    """Slurm's commands are stand-ins: one runs what it is given, the other notes that it was called."""
    run(tmp_path, sys.executable, FOLDER.parent / "digits" / "export_digits.py", tmp_path)
    (tmp_path / "bin").mkdir()
    for name, text in {"srun": 'exec "$@"', "scontrol": 'echo "$@" >>requeued'}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    job = ["bash", str(FOLDER.parent / "preemption" / "train.sbatch"), "digits.onnx", "--data", "digits.npz", "--feed",
           "images=train_images", "--target", "train_labels", "--steps", "300"]
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    for starts in range(1, 20):
        with subprocess.Popen(job, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            if starts == 1:  # Slurm signals the job's steps, which are children of the script
                process.stderr.readline()  # the progress of the first update
                subprocess.run(["pkill", "-USR1", "-P", str(process.pid)], check=True)
            _, errors = process.communicate(timeout=120)
        if process.returncode == 0 and "stopped " not in errors:
            break
        assert "in the middle of update" in errors
    assert starts == 2 and (tmp_path / "requeued").read_text() == "requeue 7\n"


def test_a_step_leaves_python_and_comes_back(tmp_path):
    program, command = shutil.which("continue_step"), shutil.which("caesura")
    if program is None or command is None:
        pytest.skip("continue_step and caesura are not on PATH (. build/activate, with the examples built)")
    before = accuracy(run(tmp_path, sys.executable, FOLDER / "export_step.py", tmp_path))
    assert "242 updates in all" in run(tmp_path, program, tmp_path)
    after = accuracy(run(tmp_path, sys.executable, FOLDER / "export_step.py", tmp_path, "--back"))
    assert before < after and after > 0.93
