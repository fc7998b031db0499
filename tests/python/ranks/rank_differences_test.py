# SPDX-License-Identifier: Apache-2.0
"""Two ranks on Gloo whose steps rightly differ."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from rank_processes import run_ranks, same_on_all_ranks  # noqa: E402
from torch import nn  # noqa: E402

import caesura  # noqa: E402
from caesura import torch_kernels  # noqa: E402

pytestmark = pytest.mark.skipif(not torch_kernels.built(), reason="libcaesura_torch was not built")


def _batch(rank, call, rows=8):
    random = torch.Generator().manual_seed(10 * call + rank)
    return torch.randn(rows, 16, generator=random), torch.randint(4, (rows,), generator=random)


def second_step(rank):
    """Sizes that vary on one rank: a later step of the process begins as the first one did, with or without exchanges inside."""
    for _ in range(2):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64))
        step = caesura.compile_step(net, lambda scores, t: F.cross_entropy(scores.flatten(0, 1), t.flatten()),
                                    torch.optim.SGD(net.parameters(), lr=0.1))
        for i in range(3):
            ids = torch.randint(64, (2, 13 if rank == 0 else 8 + i))
            step(ids[:, :-1], ids[:, 1:])
        same_on_all_ranks(net.parameters())
    for rows in ((4, 4), (4, 2)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 8), nn.SyncBatchNorm(8), nn.Linear(8, 4))
        step = caesura.compile_step(net, F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1))
        for i in range(2):
            step(*_batch(rank, i, rows[rank]))
        same_on_all_ranks(net.parameters())
    return True


@pytest.mark.parametrize("body", [second_step])
def test_two_ranks(body):
    run_ranks(2, body)
