# SPDX-License-Identifier: Apache-2.0
"""Compiled steps on ranks that begin apart, or whose steps differ: they train as one process would, or all refuse the call."""

import os

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from rank_processes import run_ranks, same_on_all_ranks  # noqa: E402
from rank_steps import CE, batch_of, in_turn, mlp, refused, sgd, values_of  # noqa: E402
from torch import nn  # noqa: E402

import caesura  # noqa: E402
from caesura import torch_kernels  # noqa: E402

pytestmark = pytest.mark.skipif(not torch_kernels.built(), reason="libcaesura_torch was not built")


def _refused_as(step, words):
    with pytest.raises(caesura.StepRefused, match=words):
        step(torch.randint(2, (8, 2)), torch.randint(4, (8,)))


class Frozen(nn.Module):
    def __init__(self, rank):
        super().__init__()
        torch.manual_seed(rank)  # as if only rank 0 had loaded the file
        self.base, self.head = nn.Linear(8, 16).requires_grad_(False), nn.Linear(16, 4)
        self.register_buffer("scale", torch.rand(16))
        self.register_buffer("unused", torch.rand(3) > 0.5)

    def forward(self, x):
        return self.head(torch.tanh(self.base(x)) * self.scale)


def frozen(rank):
    """Frozen parameters and buffers are those of rank 0, whether a step reads them or not; buffers stay where they are to."""
    for broadcasts in (True, False):
        net = Frozen(rank)
        scale, want = net.scale.clone(), Frozen(0)
        step = caesura.compile_step(net, CE, sgd(net.head), ranks=caesura.Ranks(broadcast_buffers=broadcasts))
        for i in range(2):
            step(*batch_of(rank, i))
        same_on_all_ranks(net.parameters())
        assert torch.equal(net.base.weight, want.base.weight)
        assert torch.equal(net.scale, want.scale if broadcasts else scale)
        assert not broadcasts or torch.equal(net.unused, want.unused)
    return True


def statistics(rank):
    """Running statistics are each rank's own where they are to be."""
    for broadcasts in (True, False):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
        step = caesura.compile_step(net, CE, sgd(net), ranks=caesura.Ranks(broadcast_buffers=broadcasts))
        for i in range(3):
            step(*batch_of(rank, i))
        other = net[1].running_mean.clone()
        dist.broadcast(other, 0)
        assert torch.equal(other, net[1].running_mean) == (broadcasts or rank == 0)
        same_on_all_ranks(net.parameters())
    return True


class Heads(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.body, self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x, task="a"):
        return (self.a if task == "a" else self.b)(torch.tanh(self.body(x)))


def later_head(rank):
    """What only a later program reads, and a module that comes later, are rank 0's, too."""
    net = Heads(rank)
    step = caesura.compile_step(net, CE, sgd(net))
    for i, task in enumerate("abab"):
        x, y = batch_of(rank, i)
        step(x, task, y)
        same_on_all_ranks(net.parameters())
    torch.manual_seed(rank + 7)
    for head in (nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4)), nn.Linear(16, 4), nn.Linear(16, 4)):
        net.a = head  # the last one has the names of the one before
        step.optimizer.add_param_group({"params": net.a.parameters()})
        for i in range(2):
            x, y = batch_of(rank, i)
            step(x, "a", y)
            same_on_all_ranks(net.parameters())
    return True


def other_divided(rank):
    """State is divided anew for a parameter that has come to another group. A tensor that comes in place of another one is refused."""
    trained = []
    for shard in (0, 1):
        net = Heads(0)
        optimizer = torch.optim.SGD([*net.body.parameters(), *net.a.parameters()], lr=0.1, momentum=0.9)
        step = caesura.compile_step(net, CE, optimizer, ranks=caesura.Ranks(shard=shard))
        step(*batch_of(rank, 0))
        optimizer.add_param_group({"params": [optimizer.param_groups[0]["params"].pop()], "lr": 0.01, "momentum": 0.9})
        step(*batch_of(rank, 1))
        trained.append([p.detach().clone() for p in net.parameters()])
    assert all(map(torch.equal, *trained))
    net.a = nn.Linear(16, 4)
    optimizer.add_param_group({"params": net.a.parameters()})
    with pytest.raises(caesura.StepRefused, match="'a.weight' is another tensor than the one"):
        step(*batch_of(rank, 1))
    assert all(map(torch.equal, trained[1][:2], net.body.parameters()))
    return True


def state(rank):
    """Optimizer state that only rank 0 has loaded is taken by the others, with its counts; what only others have is dropped."""
    for with_state in (0, 1):
        torch.manual_seed(0)
        net = nn.Linear(8, 4)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        for i in range(5 if rank == with_state else 0):
            CE(net(batch_of(0, i)[0]), batch_of(0, i)[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
        step = caesura.compile_step(net, CE, optimizer)
        for i in range(3):
            step(*batch_of(rank, i))
        same_on_all_ranks(values_of(step))
        assert [float(s["step"]) for s in optimizer.state.values()] == [3 + (5 if with_state == 0 else 0)] * 2
    return True


def refusals(rank):
    """Each call compares the modules until they are alike; then the ranks join, and train."""
    torch.manual_seed(rank)
    net = mlp(nn.ReLU if rank == 0 else nn.GELU)
    step = caesura.compile_step(net, CE, sgd(net))
    for i in range(3):
        assert isinstance(refused(step, rank, "module '1' is ReLU() on rank 0, GELU(approximate='none') on rank 1", call=i), ValueError)
    net[1] = nn.ReLU()
    for i in range(3):
        step(*batch_of(rank, i))
        same_on_all_ranks(net.parameters())
    return True


def from_disk(rank, folder):
    """Programs that come from the disk are compared, and join, as others do; a refusal is none of the file's faults."""
    os.environ["CAESURA_PROGRAM_CACHE"] = os.path.join(folder, str(rank))
    for how in ("relu", "gelu", "differ", "relu"):
        torch.manual_seed(rank)
        kind = {"relu": nn.ReLU, "gelu": nn.GELU}.get(how, (nn.ReLU, nn.GELU)[rank])
        net = mlp(kind)
        torch._dynamo.reset()  # as in another process
        step = caesura.compile_step(net, CE, sgd(net))
        for i in range(3):
            if how == "differ":
                refused(step, rank, "module '1' is ReLU()", call=i)
            else:
                step(*batch_of(rank, i))
        if how != "differ":
            same_on_all_ranks(net.parameters())
    assert not any(p.is_captured for p in step._programs)  # the last one came from the disk
    return True


def options(rank):
    """Options, loss functions and modes that differ are named at the first call."""
    other = rank == 1
    for words, arguments in [("clip_norm is 0.0 on rank 0, 1.0 on rank 1", {"clip_norm": float(other)}),
                             ("accumulation_steps is 1 on rank 0, 2 on rank 1", {"accumulation_steps": 1 + other}),
                             ("precision is fp32 on rank 0, bf16 on rank 1", {"precision": "bf16" if other else "fp32"}),
                             ("shard is 0 on rank 0, 1 on rank 1", {"ranks": caesura.Ranks(shard=int(other))}),
                             ("bucket_bytes is 4194304 on rank 0, 100 on rank 1",
                              {"ranks": caesura.Ranks(bucket_bytes=100 if other else 4 << 20)})]:
        net = mlp()
        refused(caesura.compile_step(net, CE, sgd(net), **arguments), rank, words)
    net = mlp()
    loss = (lambda y, t: 2 * CE(y, t)) if other else (lambda y, t: CE(y, t))
    refused(caesura.compile_step(net, loss, sgd(net)), rank, "the code of the loss is ")
    refused(caesura.compile_step(net.train(not other), CE, sgd(net)), rank, "ReLU(), in evaluation on rank 1")
    net.train()[0].requires_grad_(not other)
    refused(caesura.compile_step(net, CE, sgd(net)), rank, "requires_grad=False on rank 1")
    return True


def later(rank):
    """What differs in a later update is refused by all ranks, and they go on once it is alike."""
    net = mlp()
    step = caesura.compile_step(net, CE, torch.optim.AdamW(net.parameters(), lr=0.1))
    for i in range(3):
        step(*batch_of(rank, i))
    (group,) = step.optimizer.param_groups
    for name, value in (("lr", 0.01), ("betas", (0.5, 0.9)), ("weight_decay", 0.5), ("amsgrad", True)):
        before = group[name]
        if rank == 1:
            group[name] = value
        refused(step, rank, f"{name} is {before} on rank 0, {value} on rank 1")
        group[name] = before
        step(*batch_of(rank, 3))
        same_on_all_ranks(values_of(step))
    with torch.no_grad():  # from outside of the step
        net[0].weight.mul_(1 + rank)
    refused(step, rank, "the hash of the values of '0.weight' is")
    with torch.no_grad():
        net[0].weight.div_(1 + rank)
    step(*batch_of(rank, 4))
    state = step.optimizer.state[net[0].weight]
    state["exp_avg"].mul_(1 + rank)
    refused(step, rank, "the hash of the values of 'optimizer.exp_avg.0.weight' is")
    state["exp_avg"].div_(1 + rank)
    net.train(rank == 0)
    refused(step, rank, "in evaluation on rank 1")
    net.train()
    for i in range(3):
        step(*batch_of(rank, i))
    same_on_all_ranks(values_of(step))
    return True


def writes(rank):
    """A write to a few elements of a large tensor on one rank is noticed by PyTorch's count of them, where the sample of values would
    need up to 256 updates. Writes on all ranks are no difference, nor those that leave the values as they were."""
    net = nn.Sequential(nn.Embedding(4096, 32), nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 4))
    net[2].requires_grad_(False)
    step = caesura.compile_step(net, CE, sgd(net))

    def train(calls):
        for i in range(calls):
            step(torch.randint(2, (8, 2)), torch.randint(4, (8,)))
        same_on_all_ranks(net.parameters())

    train(3)
    for name, index in (("0.weight", (4000, 7)), ("2.weight", (63, 63))):  # the second one is frozen
        parameter, saved = net.get_parameter(name), {key: value.clone() for key, value in net.state_dict().items()}
        with torch.no_grad():
            for write in (lambda there: there.add_(1), lambda there: there.fill_(5.0)):
                if rank == 1:
                    write(parameter[index])
                _refused_as(step, f"the hash of the values of '{name}' is")
                net.load_state_dict(saved)
                train(2)
            if rank == 1:
                parameter.copy_(parameter.clone())
            train(2)
            meetings = step._ranks._meetings
            parameter[index].add_(1)
            train(3)
            assert step._ranks._meetings == meetings
    return True


def counts(rank):
    """Numbers of updates are compared where PyTorch's state has none, and joined."""
    net = mlp()
    step = caesura.compile_step(net, CE, sgd(net, momentum=0.9, dampening=0.5))
    for i in range(3):
        step(*batch_of(rank, i))
    if rank == 1:
        step.optimizer.state.clear()
    refused(step, rank, "the number of updates is 3 on rank 0, 0 on rank 1")
    step.optimizer.state.clear()
    if rank == 0:  # what a new step takes from it
        caesura.compile_step(net, CE, step.optimizer, ranks=caesura.Ranks("alone"))(*batch_of(rank, 3))
    again = caesura.compile_step(net, CE, step.optimizer)
    for i in range(3):
        again(*batch_of(rank, i))
    same_on_all_ranks(values_of(again))
    return True


def lengths_of_a_second_step(rank):
    """Sizes that vary on one rank only, also in the second step of a process."""
    for _ in range(2):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64))
        step = caesura.compile_step(net, lambda y, t: CE(y.flatten(0, 1), t.flatten()), sgd(net))
        for i in range(4):
            ids = torch.randint(64, (2, 13 if rank == 0 else 8 + i))
            step(ids[:, :-1], ids[:, 1:])
            same_on_all_ranks(net.parameters())
    for rows in ((4, 4), (4, 2)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 8), nn.SyncBatchNorm(8), nn.Linear(8, 4))
        step = caesura.compile_step(net, CE, sgd(net))
        for i in range(3):
            step(*batch_of(rank, i, rows=rows[rank]))
            same_on_all_ranks(net.parameters())
    return True


def members(rank):
    """A process group's members join, and no others."""
    group = dist.new_group([1, 2])
    torch.manual_seed(rank)
    net = mlp()
    if rank == 0:
        return True
    torch.manual_seed(1)
    want = mlp()
    step = caesura.compile_step(net, CE, sgd(net, lr=0.0), ranks=caesura.Ranks(group))
    step(*batch_of(rank, 0))
    assert torch.equal(net[0].weight, want[0].weight)
    return True


def test_two_ranks():
    run_ranks(2, in_turn, [frozen, statistics, later_head, other_divided, state, refusals, options, later, writes, counts,
                           lengths_of_a_second_step], seconds=60)


def test_programs_from_the_disk(tmp_path):
    run_ranks(2, from_disk, str(tmp_path), seconds=60)


def test_members_of_a_group():
    run_ranks(3, members, seconds=60)
