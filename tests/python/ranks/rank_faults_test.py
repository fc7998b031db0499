# SPDX-License-Identifier: Apache-2.0
"""One of three ranks on Gloo is killed or stopped before any collective of a step whose optimizer state is divided: the
others fail with nothing mixed, and go on from the last checkpoint. CAESURA_LONG=1: at every collective."""

import ctypes
import os
import pathlib
import signal
import time

import numpy
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from rank_processes import run_ranks  # noqa: E402

import caesura  # noqa: E402
from caesura import _core, torch_kernels  # noqa: E402

pytestmark = pytest.mark.skipif(not torch_kernels.built(), reason="libcaesura_torch was not built")

_LOST = 1
_WATCHDOG = 60
_WAYS = [(1, 1), (1, 3), (2, 3)]  # shard, micro-steps of an update


def _checks():
    torch_kernels.load()
    return ctypes.CDLL(str(pathlib.Path(_core.__file__).parents[2] / "lib" / "librank_checks.so"))


def _session(folder, way):
    shard, steps = way
    return caesura.TrainingSession(os.path.join(folder, "net.onnx"), optimizer=caesura.optim.AdamW(lr=0.01),
                                   accumulation_steps=steps, threads=1, ranks=caesura.Ranks(shard=shard, bucket_bytes=100))


def _update(session, rank, update, steps):
    """Returns the parameters before each micro-step."""
    for micro in range(update * steps, (update + 1) * steps):
        yield session.parameters()
        random = numpy.random.default_rng(10 * micro + rank)
        session.step({"x": random.standard_normal((4, 16), dtype=numpy.float32), "target": random.integers(0, 8, 4)})


def _same(a, b):
    return a.keys() == b.keys() and all(numpy.array_equal(a[name], b[name]) for name in a)


def _bits(folder, name):
    with numpy.load(os.path.join(folder, f"{name}.npz")) as file:
        return dict(file)


def undisturbed(rank, folder, way):
    """Two updates; a checkpoint after the first one."""
    session = _session(folder, way)
    list(_update(session, rank, 0, way[1]))
    session.save(os.path.join(folder, "first"))
    checks = _checks()
    checks.caesura_break_group(dist.group.WORLD.group_name.encode(), -1, 0)
    list(_update(session, rank, 1, way[1]))
    if rank == 0:
        numpy.savez(os.path.join(folder, "three.npz"), **session.parameters())
        pathlib.Path(folder, "starts").write_text(str(checks.caesura_group_starts()))
    return True


def restored(rank, folder, way):
    """Two ranks go on from the checkpoint of three."""
    session = _session(folder, way)
    session.restore(os.path.join(folder, "first"))
    list(_update(session, rank, 1, way[1]))
    if rank == 0:
        numpy.savez(os.path.join(folder, "two.npz"), **session.parameters())
    return True


def broken(rank, folder, way, at, sent):
    session = _session(folder, way)
    list(_update(session, rank, 0, way[1]))
    session.save(os.path.join(folder, "last"))
    if rank == _LOST:
        _checks().caesura_break_group(dist.group.WORLD.group_name.encode(), at, sent)
    began, before, outcome = time.monotonic(), None, "done"
    try:
        for before in _update(session, rank, 1, way[1]):
            pass
        assert _same(session.parameters(), _bits(folder, "three"))
    except caesura.RankFailure as error:
        lost = "the step is lost" in str(error)
        outcome = "lost" if lost else "undone"
        assert bool(session.inconsistent) == lost
        assert lost or _same(session.parameters(), before)
    took = time.monotonic() - began
    assert took < _WATCHDOG
    with open(os.path.join(folder, "outcomes"), "a") as file:
        file.write(f"{outcome} {took:.2f}\n")
    if outcome == "lost":
        with pytest.raises(ValueError, match="[Rr]estore"):
            list(_update(session, rank, 1, way[1]))
    survivors = dist.new_group([r for r in range(3) if r != _LOST], use_local_synchronization=True)
    with pytest.raises(ValueError, match="the part of a rank that was lost is gone"):
        session.regroup(survivors)
    shard, steps = way
    again = caesura.TrainingSession(os.path.join(folder, "net.onnx"), optimizer=caesura.optim.AdamW(lr=0.01),
                                    accumulation_steps=steps, threads=1, ranks=caesura.Ranks(survivors, shard=shard, bucket_bytes=100))
    again.restore(os.path.join(folder, "last"))
    list(_update(again, dist.get_rank(survivors), 1, steps))
    assert _same(again.parameters(), _bits(folder, "two"))


def _save_net(path):
    from onnx import helper, numpy_helper, save, TensorProto
    random = torch.Generator().manual_seed(1)
    weights = {"w": torch.randn(16, 32, generator=random) / 4, "v": torch.randn(32, 16, generator=random) / 6,
               "u": torch.randn(16, 8, generator=random) / 4}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["a"]),
             helper.make_node("MatMul", ["a", "v"], ["g"]), helper.make_node("Tanh", ["g"], ["b"]),
             helper.make_node("MatMul", ["b", "u"], ["y"])]
    graph = helper.make_graph(nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
                              [numpy_helper.from_array(value.numpy(), name) for name, value in weights.items()])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


@pytest.mark.parametrize("way", _WAYS, ids=lambda way: f"shard{way[0]}-steps{way[1]}")
def test_a_lost_rank_leaves_no_mixture(way, tmp_path):
    folder = str(tmp_path)
    _save_net(tmp_path / "net.onnx")
    run_ranks(3, undisturbed, folder, way)
    run_ranks(2, restored, folder, way)
    starts = int((tmp_path / "starts").read_text())
    assert starts >= 8
    every = 1 if os.environ.get("CAESURA_LONG") else 3
    breaks = [(at, signal.SIGKILL) for at in range(0, starts, every)] + [(at, signal.SIGSTOP) for at in range(2, starts, 2 * every)]
    for at, sent in breaks:
        run_ranks(3, broken, folder, way, at, sent, seconds=3, lost=(_LOST,))
    outcomes = [line.split() for line in (tmp_path / "outcomes").read_text().splitlines()]
    assert len(outcomes) == 2 * len(breaks)
    names = [name for name, _ in outcomes]
    assert {"undone", "lost"} <= set(names)
    print(f"{len(breaks)} of 2 x {starts}: " + ", ".join(f"{names.count(n)} {n}" for n in ("done", "undone", "lost")) +
          f"; after {max(float(took) for _, took in outcomes):.2f} s at most")
