# SPDX-License-Identifier: Apache-2.0
"""torchft's manager with two replicas: a wrapped module trains as the eager one does, and ends on the same losses where one
replica is killed and started again."""

import datetime
import json
import multiprocessing
import os
import signal

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchft", reason="torchft is not installed")
import caesura  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torchft  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torchft.coordination import LighthouseServer  # noqa: E402

STEPS = 6


def batch(step, replica):
    generator = torch.Generator().manual_seed(10 * step + replica)
    return torch.randn(8, 16, generator=generator), torch.randint(4, (8,), generator=generator)


def replica(number, lighthouse, wraps, dies_at, path):
    """Trains one replica, a group of one rank. With min_replica_size=2 a replica waits until the other one is back."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
    module = caesura.wrap(module) if wraps else module
    optimizer, losses = torch.optim.AdamW(module.parameters(), lr=1e-2), {}

    def load(state):
        module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])
        losses.update(state["losses"])

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=datetime.timedelta(seconds=10)),
        min_replica_size=2,
        rank=0,
        world_size=1,
        load_state_dict=load,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        hostname="localhost",
        state_dict=lambda: {"module": module.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses},
        replica_id=f"replica {number}",
        timeout=datetime.timedelta(seconds=30),
    )
    parallel, managed = torchft.DistributedDataParallel(manager, module), torchft.Optimizer(manager, optimizer)
    while (step := manager.current_step()) < STEPS:
        if step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        x, labels = batch(step, number)
        managed.zero_grad()
        loss = cross_entropy(parallel(x), labels)
        loss.backward()
        managed.step()
        if manager.current_step() > step:
            losses[step] = loss.item()
    manager.shutdown()
    path.with_suffix(f".{number}").write_text(
        json.dumps(
            {
                "losses": losses,
                "sum": sum(p.sum().item() for p in module.parameters()),
                "kernels": caesura.stats().kernel_calls,
                "fallbacks": len(caesura.stats().fallbacks),
            }
        )
    )


def train(path, wraps=True, dies_at=None):
    """Returns what both replicas wrote. dies_at: the step before which the second one is killed; it is started again."""
    spawn = multiprocessing.get_context("spawn")
    server = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=1000)

    def start(number, dies_at=None):
        process = spawn.Process(target=replica, args=(number, server.address(), wraps, dies_at, path))
        process.start()
        return process

    replicas = [start(0), start(1, dies_at)]
    try:
        if dies_at is not None:
            replicas[1].join(60)
            assert replicas[1].exitcode == -signal.SIGKILL
            replicas[1] = start(1)
        for process in replicas:
            process.join(90)
            assert process.exitcode == 0
    finally:
        for process in replicas:
            process.kill()
        server.shutdown()
    return [json.loads(path.with_suffix(f".{number}").read_text()) for number in range(2)]


def test_a_compiled_step_is_refused():
    module = torch.nn.Linear(4, 2)
    optimizer = torchft.Optimizer(None, torch.optim.SGD(module.parameters(), lr=0.1))
    with pytest.raises(caesura.StepRefused, match=r"torchft\.DistributedDataParallel\(manager, caesura\.wrap\(module\)\)"):
        caesura.compile_step(module, cross_entropy, optimizer)


@pytest.mark.skipif("CAESURA_LONG" not in os.environ, reason="a long test (CAESURA_LONG=1)")
def test_a_lost_replica_comes_back(tmp_path):
    """The replica that comes back takes the other one's values; the losses are those of the undisturbed run."""
    eager, wrapped, lost = train(tmp_path / "eager", wraps=False), train(tmp_path / "wrapped"), train(tmp_path / "lost", dies_at=3)
    for number in range(2):
        assert len(wrapped[number]["losses"]) == STEPS
        assert wrapped[number]["kernels"] >= 2 * STEPS and wrapped[number]["fallbacks"] == 0
        assert wrapped[number]["losses"] == pytest.approx(eager[number]["losses"], rel=1e-5)
    assert lost[0]["losses"] == wrapped[0]["losses"]
    assert lost[0]["sum"] == lost[1]["sum"] == wrapped[0]["sum"]
