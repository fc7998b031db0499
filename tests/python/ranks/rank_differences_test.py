# SPDX-License-Identifier: Apache-2.0
"""Two ranks on Gloo whose steps rightly differ: in their sizes, or in the parameters that a call updates."""

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812
from rank_processes import run_ranks, same_on_all_ranks  # noqa: E402
from rank_steps import in_turn  # noqa: E402
from torch import nn  # noqa: E402

import caesura  # noqa: E402
from caesura import torch_kernels  # noqa: E402

pytestmark = pytest.mark.skipif(not torch_kernels.built(), reason="libcaesura_torch was not built")


class Tasks(nn.Module):
    """A body, and heads of which each call takes one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 4), nn.Linear(32, 4)

    def forward(self, x, task):
        return (self.a if task == "a" else self.b)(torch.tanh(self.body(x)))


def _batch(rank, call, rows=8):
    random = torch.Generator().manual_seed(10 * call + rank)
    return torch.randn(rows, 16, generator=random), torch.randint(4, (rows,), generator=random)


def _close(ours, eager):
    same_on_all_ranks(ours.parameters())
    for (name, a), b in zip(eager.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def counts(rank):
    """Heads that take turns, and a body that is thawed later: their numbers of updates differ from then on. One rank's batches have
    other sizes in the middle."""
    ours, eager = Tasks(), Tasks()
    optimizers = []
    for net in (eager, ours):
        net.body.requires_grad_(False)
        optimizers.append(torch.optim.AdamW([*net.a.parameters(), *net.b.parameters()], lr=0.02))
    step = caesura.compile_step(ours, F.cross_entropy, optimizers[1])
    with caesura.strict():
        for call, task in enumerate("aababbaaba"):
            for net, optimizer in zip((eager, ours) if call == 4 else (), optimizers):
                net.body.requires_grad_(True)
                optimizer.add_param_group({"params": list(net.body.parameters()), "lr": 0.01})
            batches = [_batch(r, call, rows=6 if r == 1 and call in (5, 6) else 8) for r in range(2)]
            loss = sum(F.cross_entropy(eager(x, task), y) for x, y in batches) / 2
            optimizers[0].zero_grad()
            loss.backward()
            optimizers[0].step()
            x, y = batches[rank]
            torch.testing.assert_close(step(x, task, y), loss.detach(), rtol=1e-5, atol=0)
    rows = {" ".join(call.program.trained): (call.program.rows, call.program.has_offsets) for call in step._calls}
    assert len(rows) == 2  # a call for each head, which Python does not look into
    of_ranks = [None, None]
    dist.all_gather_object(of_ranks, rows)
    assert of_ranks[0] == of_ranks[1]
    _close(ours, eager)
    for p, q in zip(eager.parameters(), ours.parameters()):
        assert optimizers[0].state[p]["step"] == optimizers[1].state[q]["step"]
    divided = caesura.compile_step(ours, F.cross_entropy, optimizers[1], ranks=caesura.Ranks(shard=1))
    for task in "ab":  # a body and a head that have had the same number of updates no more
        divided(x, task, y)
        optimizers[1].state[ours.body.weight]["step"] += 1
        divided(x, task, y)
    divided.gather_state()
    same_on_all_ranks([value for p in ours.parameters() for value in optimizers[1].state[p].values()])
    return True


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


class Expert(nn.Module):
    """An expert that is given the tokens which their values choose. Each rank holds it whole."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inp, self.expert, self.head = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x):
        x = torch.tanh(self.inp(x))
        at = (x[:, 0] > 0).nonzero().flatten()
        return self.head(x.index_add(0, at, self.expert(x[at])))


def sizes_of_values(rank):
    """Gradients that are sized at run time lie in a bucket with others, in one each, and in ranks' parts."""
    for options in ({}, {"bucket_bytes": 1}, {"shard": 1}):
        ours, eager = Expert(), Expert()
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in (eager, ours)]
        step = caesura.compile_step(ours, F.cross_entropy, optimizers[1], clip_norm=1.0, ranks=caesura.Ranks(**options))
        for call in range(3):
            loss = sum(F.cross_entropy(eager(x), y) for x, y in (_batch(r, call) for r in range(2))) / 2
            optimizers[0].zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(eager.parameters(), 1.0)
            optimizers[0].step()
            torch.testing.assert_close(step(*_batch(rank, call)), loss.detach(), rtol=1e-5, atol=0)
        _close(ours, eager)
    return True


def test_two_ranks():
    run_ranks(2, in_turn, [counts, second_step, sizes_of_values])
