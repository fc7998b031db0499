# SPDX-License-Identifier: Apache-2.0
"""Launchers: a job of two ranks that loses one, and is started again from the last checkpoint, ends on the bits of the undisturbed
run. CAESURA_LONG=1 runs them, those that are installed."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif("CAESURA_LONG" not in os.environ, reason="a long test (CAESURA_LONG=1)")
TOP = pathlib.Path(__file__).resolve().parents[3]
SCRIPT = [TOP / "examples" / "ranks" / "restart_ranks.py"]
LONG = ["--epochs", "100", "--every", "20"]
RANK = ("RANK=1", "OMPI_COMM_WORLD_RANK=1", "SLURM_PROCID=1")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def environment():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    return given | AS_ROOT | {"OMP_NUM_THREADS": "1", "MASTER_PORT": str(port), "CAESURA_PROGRAM_CACHE": "off",
                              "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def second_rank(path):
    """The process that trains as rank 1 with this checkpoint."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command, variables = ((process / name).read_bytes().decode(errors="replace").split("\0") for name in ("cmdline", "environ"))
        except OSError:
            continue
        if str(path) in command and str(SCRIPT[0]) in command and set(RANK) & set(variables):
            return int(process.name)
    return None


def done(path):
    return torch.load(path)["done"] if path.exists() else 0


def run(command, path, loses=False):
    """Runs the job; returns its code and what it has printed. loses: kills the second rank after the first checkpoint."""
    with open(path.with_suffix(".log"), "w+") as log:
        job = subprocess.Popen([*map(str, command), *map(str, SCRIPT), str(path), *LONG], env=environment(), stdout=log,
                               stderr=subprocess.STDOUT, start_new_session=True)
        try:
            while loses and done(path) < 20 and job.poll() is None:
                time.sleep(0.01)
            if loses:
                os.kill(second_rank(path), signal.SIGKILL)
            job.wait(timeout=200)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
        log.seek(0)
        return job.returncode, log.read()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "run.pt"
    code, text = run(TORCHRUN, path)
    assert code == 0, text
    return torch.load(path)


def same(path, undisturbed):
    found = torch.load(path)
    assert found["done"] == undisturbed["done"]
    for name, value in undisturbed["model"].items():
        assert torch.equal(found["model"][name], value), name
    for of, state in undisturbed["optimizer"]["state"].items():
        for key, value in state.items():
            assert torch.equal(found["optimizer"]["state"][of][key], value), (of, key)


def test_torchrun_restarts_the_ranks(undisturbed, tmp_path):
    path = tmp_path / "run.pt"
    code, text = run([*TORCHRUN, "--max-restarts", "2"], path, loses=True)
    assert code == 0, text
    assert "rank 1 of 2 goes on after update" in text
    same(path, undisturbed)


def started_again(launcher, undisturbed, path):
    code, text = run(launcher, path, loses=True)
    assert code != 0 and 20 <= done(path) < undisturbed["done"], text
    code, text = run(launcher, path)
    assert code == 0, text
    assert "rank 1 of 2 goes on after update" in text
    same(path, undisturbed)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI's mpirun is not installed")
def test_mpi_starts_the_job_again(undisturbed, tmp_path):
    started_again(["mpirun", "-n", "2", sys.executable], undisturbed, tmp_path / "run.pt")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Slurm's daemons on this machine, without Munge."""
    host, folder = socket.gethostname(), tmp_path / "slurm"
    folder.mkdir()
    ports = [socket.socket() for _ in range(2)]
    for port in ports:
        port.bind(("127.0.0.1", 0))
    controller, node = (port.getsockname()[1] for port in ports)
    for port in ports:
        port.close()
    (folder / "slurm.conf").write_text(f"""ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
""")
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    with open(folder / "log", "w") as log:
        daemons = [subprocess.Popen([name, "-D"], stdout=log, stderr=log) for name in ("slurmctld", "slurmd")]
    try:
        for _ in range(100):
            if "idle" in subprocess.run(["sinfo", "-h", "-o", "%t"], capture_output=True, text=True, check=False).stdout:
                break
            time.sleep(0.3)
        else:
            pytest.fail((folder / "log").read_text())
        yield
    finally:
        for daemon in daemons:
            daemon.terminate()
            daemon.wait(30)


@pytest.mark.skipif(shutil.which("slurmctld") is None or shutil.which("slurmd") is None or os.getuid() != 0,
                    reason="Slurm's daemons are not installed, or this is not root")
def test_slurm_starts_the_job_again(slurm, undisturbed, tmp_path):
    started_again(["srun", "-n", "2", "--kill-on-bad-exit=1", sys.executable], undisturbed, tmp_path / "run.pt")
