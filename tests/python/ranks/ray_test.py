# SPDX-License-Identifier: Apache-2.0
"""Ray's TorchTrainer on two workers: a wrapped module and a compiled step train as eager modules do."""

import json
import os
import pathlib
import signal

import pytest

torch = pytest.importorskip("torch")
ray = pytest.importorskip("ray")
pytest.importorskip("ray.train.torch", reason="ray[train] is not installed")

import torch.distributed as dist  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

HERE = str(pathlib.Path(__file__).resolve().parent)
STEPS = 4


@pytest.fixture(scope="module")
def workers():
    """A Ray of this test's own, whose workers find this file and caesura."""
    path = os.pathsep.join(filter(None, (HERE, os.environ.get("PYTHONPATH"))))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"PYTHONPATH": path, "CAESURA_PROGRAM_CACHE": "off", "OMP_NUM_THREADS": "1",
                            "RAY_USAGE_STATS_ENABLED": "0"}.items():
            patch.setenv(name, value)
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20,
                 _node_ip_address="127.0.0.1")
        yield
        ray.shutdown()


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))


def batch(step):
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return torch.randn(8, 16, generator=generator), torch.randint(4, (8,), generator=generator)


def in_a_loop(module):
    """The mean losses of all workers."""
    module = ray.train.torch.prepare_model(module)
    optimizer, losses = torch.optim.AdamW(module.parameters(), lr=1e-2), []
    for step in range(STEPS):
        x, labels = batch(step)
        optimizer.zero_grad()
        loss = cross_entropy(module(x), labels)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def worker(config):
    import caesura
    eager = in_a_loop(net())
    with caesura.strict():
        wrapped = in_a_loop(caesura.wrap(net()))
    module = net()
    step = caesura.compile_step(module, cross_entropy, torch.optim.AdamW(module.parameters(), lr=1e-2))
    compiled = [float(step(*batch(k))) for k in range(STEPS)]
    if dist.get_rank() == 0:
        pathlib.Path(config["found"]).write_text(json.dumps({
            "world": dist.get_world_size(), "eager": eager, "wrapped": wrapped, "compiled": compiled,
            "kernels": caesura.stats().kernel_calls, "fallbacks": len(caesura.stats().fallbacks)}))


def test_two_workers(workers, tmp_path):
    trainer = ray.train.torch.TorchTrainer(
        worker, train_loop_config={"found": str(tmp_path / "found.json")},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
        run_config=ray.train.RunConfig(storage_path=str(tmp_path)))
    trainer.fit()
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["world"] == 2 and found["kernels"] >= 2 * STEPS and found["fallbacks"] == 0
    assert found["wrapped"] == pytest.approx(found["eager"], rel=1e-5)
    assert found["compiled"] == pytest.approx(found["eager"], rel=1e-5)


def restarted(config):
    """Saves each step. The second worker is killed once, in the middle, where `loses` says so."""
    import caesura
    folder, rank = pathlib.Path(config["folder"]), dist.get_rank()
    module = net()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as saved:
            losses, states, optimizer_state = torch.load(pathlib.Path(saved) / "state.pt")
        module.load_state_dict(states)
        optimizer.load_state_dict(optimizer_state)
        (folder / f"went on {len(losses)}").touch()
    step = caesura.compile_step(module, cross_entropy, optimizer)
    for k in range(len(losses), STEPS):
        if config["loses"] and k == STEPS // 2 and rank == 1 and not checkpoint:
            os.kill(os.getpid(), signal.SIGKILL)
        losses.append(float(step(*batch(k))))
        path = folder / f"{rank} {k}"
        path.mkdir(exist_ok=True)
        torch.save([losses, module.state_dict(), optimizer.state_dict()], path / "state.pt")
        ray.train.report({"loss": losses[-1]}, checkpoint=ray.train.Checkpoint.from_directory(path) if rank == 0 else None)
    if rank == 0:
        (folder / "losses.json").write_text(json.dumps(losses))


@pytest.mark.skipif("CAESURA_LONG" not in os.environ, reason="a long test (CAESURA_LONG=1)")
def test_a_lost_worker_is_started_again(workers, tmp_path):
    """The run ends on the losses of the undisturbed one."""
    found = []
    for loses in (False, True):
        folder = tmp_path / str(loses)
        folder.mkdir()
        ray.train.torch.TorchTrainer(
            restarted, train_loop_config={"folder": str(folder), "loses": loses},
            scaling_config=ray.train.ScalingConfig(num_workers=2), torch_config=ray.train.torch.TorchConfig(backend="gloo"),
            run_config=ray.train.RunConfig(storage_path=str(folder), failure_config=ray.train.FailureConfig(max_failures=2))).fit()
        found.append(json.loads((folder / "losses.json").read_text()))
        assert any(path.name.startswith("went on") for path in folder.iterdir()) == loses
    assert found[0] == found[1] and len(found[0]) == STEPS
