# SPDX-License-Identifier: Apache-2.0
"""Two ranks on Gloo: DistributedDataParallel around wrapped modules."""

import os
import socket
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import caesura  # noqa: E402

_WORLD = 2
_SECONDS = 200  # enough for a busy machine


class Net(nn.Module):
    """28 MiB of parameters, and a layer that only some calls use."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(7))
        self.last, self.spare = nn.Linear(1024, 8), nn.Linear(8, 8)

    def forward(self, x, spare=False):
        for layer in self.layers:
            x = torch.relu(layer(x))
        x = self.last(x)
        return self.spare(x) if spare else x


def _batch(rank, step):
    return torch.randn(4, 1024, generator=torch.Generator().manual_seed(10 * step + rank))


def _same_on_all_ranks(tensors):
    for tensor in tensors:
        others = [torch.empty_like(tensor) for _ in range(_WORLD)]
        dist.all_gather(others, tensor.detach().contiguous())
        assert all(torch.equal(tensor, other) for other in others)


def _train(module, ours, rank, steps=2, accumulated=False):
    """Returns the losses, and the gradients of the last step."""
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=0.01), []
    for step in range(steps):
        optimizer.zero_grad()
        if accumulated:
            with module.no_sync():
                module(_batch(rank, 100 + step)).square().mean().backward()
        with caesura.strict(ours):
            loss = module(_batch(rank, step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [p.grad for p in module.parameters() if p.grad is not None]


def _compare(expected, actual):
    for a, b in zip(expected[0] + expected[1], actual[0] + actual[1], strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-6)
    _same_on_all_ranks(actual[1])


def around_wrap(rank):
    for accumulated in (False, True):
        eager = _train(DistributedDataParallel(Net(), find_unused_parameters=True), False, rank, accumulated=accumulated)
        caesura.reset_report()
        ours = _train(DistributedDataParallel(caesura.wrap(Net()), find_unused_parameters=True), True, rank, accumulated=accumulated)
        _compare(eager, ours)
        assert caesura.report().kernel_calls == 4 * (1 + accumulated) and not caesura.report().fallbacks


def under_compile(rank):
    """torch.compile() works around DistributedDataParallel, whose own code breaks the graph, and within it."""
    eager = _train(DistributedDataParallel(Net(), find_unused_parameters=True), False, rank)
    for around in (True, False):
        caesura.reset_report()
        net = Net()
        if around:
            module = torch.compile(DistributedDataParallel(net, find_unused_parameters=True), backend="caesura")
        else:
            module = DistributedDataParallel(torch.compile(net, backend="caesura"), find_unused_parameters=True)
        _compare(eager, _train(module, False, rank))
        assert caesura.report().kernel_calls == 4 and caesura.report().kernel_share == 1


def _rank(rank, name, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank),
                      WORLD_SIZE=str(_WORLD), CAESURA_PROGRAM_CACHE="off")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=_WORLD)
    globals()[name](rank)
    dist.barrier()
    # The rank ends without the interpreter's finalization. A thread of Gloo takes the GIL to release a tensor that Python
    # made. If that happens during the finalization, Python ends the thread in a destructor, and the process aborts
    # (PyTorch's issue 190489; eager modules only do the same). destroy_process_group() does not end these threads.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@pytest.mark.parametrize("name", ("around_wrap", "under_compile"))
def test_two_ranks(name, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = torch.multiprocessing.spawn(_rank, args=(name, port), nprocs=_WORLD, join=False)
    for _ in range(_SECONDS):
        if ranks.join(timeout=1):
            return
    for process in ranks.processes:
        process.kill()
    pytest.fail(f"the ranks took more than {_SECONDS} s")
