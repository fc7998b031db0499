# SPDX-License-Identifier: Apache-2.0
"""Compiled steps on ranks that begin apart, or whose steps differ: they train as one process would, or all refuse the call."""

import contextlib
import os
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from rank_processes import run_ranks, same_on_all_ranks  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.join import Join  # noqa: E402

import caesura  # noqa: E402
from caesura import torch_kernels  # noqa: E402

pytestmark = pytest.mark.skipif(not torch_kernels.built(), reason="libcaesura_torch was not built")
CE = nn.functional.cross_entropy


def _batch(rank, call, rows=8, inputs=8):
    random = torch.Generator().manual_seed(10 * call + rank)
    return torch.randn(rows, inputs, generator=random), torch.randint(4, (rows,), generator=random)


def _net(middle=nn.ReLU):
    return nn.Sequential(nn.Linear(8, 16), middle(), nn.Linear(16, 4))


def _sgd(module, lr=0.1, **options):
    return torch.optim.SGD(module.parameters(), lr=lr, **options)


def _values(step):
    state = [value for p in step.optimizer.state.values() for value in p.values() if isinstance(value, torch.Tensor)]
    return [*step.module.parameters(), *step.module.buffers(), *state]


def _refused(step, rank, *words, call=0):
    """The call is refused on all ranks, in these words, and changes nothing. Returns the error."""
    before, micro_steps = [value.detach().clone() for value in _values(step)], step.micro_steps
    with pytest.raises(caesura.StepRefused) as refused:
        step(*_batch(rank, call))
    for word in words:
        assert word in str(refused.value), str(refused.value)
    assert all(map(torch.equal, before, _values(step))) and step.micro_steps == micro_steps
    return refused.value


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
        step = caesura.compile_step(net, CE, _sgd(net.head), ranks=caesura.Ranks(broadcast_buffers=broadcasts))
        for i in range(2):
            step(*_batch(rank, i))
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
        step = caesura.compile_step(net, CE, _sgd(net), ranks=caesura.Ranks(broadcast_buffers=broadcasts))
        for i in range(3):
            step(*_batch(rank, i))
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
    step = caesura.compile_step(net, CE, _sgd(net))
    for i, task in enumerate("abab"):
        x, y = _batch(rank, i)
        step(x, task, y)
        same_on_all_ranks(net.parameters())
    torch.manual_seed(rank + 7)
    for head in (nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4)), nn.Linear(16, 4), nn.Linear(16, 4)):
        net.a = head  # the last one has the names of the one before
        step.optimizer.add_param_group({"params": net.a.parameters()})
        for i in range(2):
            x, y = _batch(rank, i)
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
        step(*_batch(rank, 0))
        optimizer.add_param_group({"params": [optimizer.param_groups[0]["params"].pop()], "lr": 0.01, "momentum": 0.9})
        step(*_batch(rank, 1))
        trained.append([p.detach().clone() for p in net.parameters()])
    assert all(map(torch.equal, *trained))
    net.a = nn.Linear(16, 4)
    optimizer.add_param_group({"params": net.a.parameters()})
    with pytest.raises(caesura.StepRefused, match="'a.weight' is another tensor than the one"):
        step(*_batch(rank, 1))
    assert all(map(torch.equal, trained[1][:2], net.body.parameters()))
    return True


def state(rank):
    """Optimizer state that only rank 0 has loaded is taken by the others, with its counts; what only others have is dropped."""
    for with_state in (0, 1):
        torch.manual_seed(0)
        net = nn.Linear(8, 4)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        for i in range(5 if rank == with_state else 0):
            CE(net(_batch(0, i)[0]), _batch(0, i)[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
        step = caesura.compile_step(net, CE, optimizer)
        for i in range(3):
            step(*_batch(rank, i))
        same_on_all_ranks(_values(step))
        assert [float(s["step"]) for s in optimizer.state.values()] == [3 + (5 if with_state == 0 else 0)] * 2
    return True


def refusals(rank):
    """Each call compares the modules until they are alike; then the ranks join, and train."""
    torch.manual_seed(rank)
    net = _net(nn.ReLU if rank == 0 else nn.GELU)
    step = caesura.compile_step(net, CE, _sgd(net))
    for i in range(3):
        assert isinstance(_refused(step, rank, "module '1' is ReLU() on rank 0, GELU(approximate='none') on rank 1", call=i), ValueError)
    net[1] = nn.ReLU()
    for i in range(3):
        step(*_batch(rank, i))
        same_on_all_ranks(net.parameters())
    return True


def from_disk(rank, folder):
    """Programs that come from the disk are compared, and join, as others do; a refusal is none of the file's faults."""
    os.environ["CAESURA_PROGRAM_CACHE"] = os.path.join(folder, str(rank))
    for how in ("relu", "gelu", "differ", "relu"):
        torch.manual_seed(rank)
        kind = {"relu": nn.ReLU, "gelu": nn.GELU}.get(how, (nn.ReLU, nn.GELU)[rank])
        net = _net(kind)
        torch._dynamo.reset()  # as in another process
        step = caesura.compile_step(net, CE, _sgd(net))
        for i in range(3):
            if how == "differ":
                _refused(step, rank, "module '1' is ReLU()", call=i)
            else:
                step(*_batch(rank, i))
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
        net = _net()
        _refused(caesura.compile_step(net, CE, _sgd(net), **arguments), rank, words)
    net = _net()
    loss = (lambda y, t: 2 * CE(y, t)) if other else (lambda y, t: CE(y, t))
    _refused(caesura.compile_step(net, loss, _sgd(net)), rank, "the code of the loss is ")
    _refused(caesura.compile_step(net.train(not other), CE, _sgd(net)), rank, "ReLU(), in evaluation on rank 1")
    net.train()[0].requires_grad_(not other)
    _refused(caesura.compile_step(net, CE, _sgd(net)), rank, "requires_grad=False on rank 1")
    return True


def later(rank):
    """What differs in a later update is refused by all ranks, and they go on once it is alike."""
    net = _net()
    step = caesura.compile_step(net, CE, torch.optim.AdamW(net.parameters(), lr=0.1))
    for i in range(3):
        step(*_batch(rank, i))
    (group,) = step.optimizer.param_groups
    for name, value in (("lr", 0.01), ("betas", (0.5, 0.9)), ("weight_decay", 0.5), ("amsgrad", True)):
        before = group[name]
        if rank == 1:
            group[name] = value
        _refused(step, rank, f"{name} is {before} on rank 0, {value} on rank 1")
        group[name] = before
        step(*_batch(rank, 3))
        same_on_all_ranks(_values(step))
    with torch.no_grad():  # from outside of the step
        net[0].weight.mul_(1 + rank)
    _refused(step, rank, "the hash of the values of '0.weight' is")
    with torch.no_grad():
        net[0].weight.div_(1 + rank)
    step(*_batch(rank, 4))
    state = step.optimizer.state[net[0].weight]
    state["exp_avg"].mul_(1 + rank)
    _refused(step, rank, "the hash of the values of 'optimizer.exp_avg.0.weight' is")
    state["exp_avg"].div_(1 + rank)
    net.train(rank == 0)
    _refused(step, rank, "in evaluation on rank 1")
    net.train()
    for i in range(3):
        step(*_batch(rank, i))
    same_on_all_ranks(_values(step))
    return True


def counts(rank):
    """Numbers of updates are compared where PyTorch's state has none, and joined."""
    net = _net()
    step = caesura.compile_step(net, CE, _sgd(net, momentum=0.9, dampening=0.5))
    for i in range(3):
        step(*_batch(rank, i))
    if rank == 1:
        step.optimizer.state.clear()
    _refused(step, rank, "the number of updates is 3 on rank 0, 0 on rank 1")
    step.optimizer.state.clear()
    if rank == 0:  # what a new step takes from it
        caesura.compile_step(net, CE, step.optimizer, ranks=caesura.Ranks("alone"))(*_batch(rank, 3))
    again = caesura.compile_step(net, CE, step.optimizer)
    for i in range(3):
        again(*_batch(rank, i))
    same_on_all_ranks(_values(again))
    return True


def alone(rank):
    """A rank that refuses a call alone tells the others at once; bad input does not end anything."""
    net = _net()
    step = caesura.compile_step(net, CE, _sgd(net))
    for trained in (False, True):
        hook = net[0].weight.register_hook(lambda g: 2 * g) if rank == 1 else None
        began = time.monotonic()
        _refused(step, rank, *(["rank 1 has refused this call"] if rank == 0 else []), "gradient hooks are not called by a step")
        assert time.monotonic() - began < 30
        if hook is not None:
            hook.remove()
        if not trained:
            x, y = _batch(rank, 0)
            if rank == 1:
                with pytest.raises((ValueError, RuntimeError, IndexError)) as error:
                    step(x[:, :5], y)
                assert not isinstance(error.value, (caesura.StepRefused, caesura.RankFailure))
            step(x, y)
            same_on_all_ranks(net.parameters())
    step(*_batch(rank, 1))
    same_on_all_ranks(net.parameters())
    step = caesura.compile_step(net, CE, _sgd(net), memory_budget=1 if rank == 1 else 0)
    for call in range(2):
        began = time.monotonic()
        with pytest.raises(MemoryError if rank == 1 else caesura.StepRefused, match="memory_budget: expected at least"):
            step(*_batch(rank, call))
        assert time.monotonic() - began < 30
    return True


class Breaks(nn.Module):
    """A forward that one rank cannot capture."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.breaks = nn.Linear(8, 4), False

    def forward(self, x):
        if self.breaks:
            torch._dynamo.graph_break()
        return self.net(x)


def alone_in_a_capture(rank):
    """A rank that cannot capture its first call tells the others."""
    net = Breaks()
    step = caesura.compile_step(net, CE, _sgd(net))
    net.breaks = rank == 1
    began = time.monotonic()
    _refused(step, rank, "the step cannot be one program", *(["rank 1 has refused this call"] if rank == 0 else []))
    assert time.monotonic() - began < 30
    net.breaks = False
    step(*_batch(rank, 0))
    same_on_all_ranks(net.parameters())
    return True


def unmade(rank):
    """A rank that cannot make its step tells the others, before or after they have called theirs. It does not wait for them."""
    group = dist.new_group([0, 1])
    wrong = {"clip_norm": -1.0}, {"ranks": caesura.Ranks(group, shard=2), "accumulation_steps": 2}
    for options in wrong:
        for waits in (0, 1):  # the rank that comes late
            ranks = options.get("ranks", caesura.Ranks(group))
            net = _net()
            if rank == waits:
                time.sleep(1)
            if rank == 1:
                began = time.monotonic()
                with pytest.raises(ValueError, match="clip_norm is a norm|shard=2 needs accumulation_steps=1"):
                    caesura.compile_step(net, CE, _sgd(net), **({"ranks": ranks} | options))
                assert waits == 1 or time.monotonic() - began < 0.5
            else:
                step = caesura.compile_step(net, CE, _sgd(net), ranks=caesura.Ranks(group))
                began = time.monotonic()
                _refused(step, rank, "rank 1 has refused", "clip_norm is a norm" if "clip_norm" in options else "shard=2 needs")
                assert time.monotonic() - began < 30
            if rank == 1:
                step = caesura.compile_step(net, CE, _sgd(net), ranks=caesura.Ranks(group))
            for call in range(2):
                step(*_batch(rank, call))
            same_on_all_ranks(net.parameters())
    for _ in range(2):  # all ranks refuse: no later step hears of it
        with pytest.raises(ValueError, match="clip_norm is a norm"):
            caesura.compile_step(net, CE, _sgd(net), clip_norm=-1.0, ranks=caesura.Ranks(group))
    step = caesura.compile_step(net, CE, _sgd(net), ranks=caesura.Ranks(group))
    step(*_batch(rank, 0))
    same_on_all_ranks(net.parameters())
    return True


def batches_end(rank):
    """With Join a rank that runs out of batches ends the loop of all at once; those that end together go on."""
    for uneven in (0, 1):
        net, done = _net(), 0
        step = caesura.compile_step(net, CE, _sgd(net), accumulation_steps=1 + uneven)
        for more in (0, 2 * uneven, 0):
            began = time.monotonic()
            with contextlib.ExitStack() as refuses:
                if more:
                    words = "the call is a step on rank 0, the end of the batches on rank 1"
                    refuses.enter_context(pytest.raises(caesura.StepRefused, match=words))
                with Join([step]):
                    for i in range(2 + (more if rank == 0 else 0)):
                        step(*_batch(rank, i))
                        done += 1
            assert time.monotonic() - began < 30
            same_on_all_ranks(net.parameters())
    return True


def loop_ends(rank, ends):
    """A rank leaves its loop without a word. The others' error says that it was lost where its process has ended, and otherwise, at
    the time-out, that nothing was heard of it."""
    net = _net()
    step = caesura.compile_step(net, CE, _sgd(net))
    for i in range(2):
        step(*_batch(rank, i))
    if rank == 1:
        if not ends:
            with contextlib.suppress(RuntimeError):
                dist.barrier()
        return
    before = [value.detach().clone() for value in _values(step)]
    with pytest.raises(caesura.RankFailure, match="losed by peer|reset by peer" if ends else "nothing was heard of rank 1"):
        step(*_batch(rank, 2))
    assert all(map(torch.equal, before, _values(step)))


def lengths_of_a_second_step(rank):
    """Sizes that vary on one rank only, also in the second step of a process."""
    for _ in range(2):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64))
        step = caesura.compile_step(net, lambda y, t: CE(y.flatten(0, 1), t.flatten()), _sgd(net))
        for i in range(4):
            ids = torch.randint(64, (2, 13 if rank == 0 else 8 + i))
            step(ids[:, :-1], ids[:, 1:])
            same_on_all_ranks(net.parameters())
    for rows in ((4, 4), (4, 2)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 8), nn.SyncBatchNorm(8), nn.Linear(8, 4))
        step = caesura.compile_step(net, CE, _sgd(net))
        for i in range(3):
            step(*_batch(rank, i, rows=rows[rank]))
            same_on_all_ranks(net.parameters())
    return True


def calls(rank, path):
    """What all ranks call says so where one calls something else."""
    net = _net()
    step = caesura.compile_step(net, CE, torch.optim.AdamW(net.parameters()), ranks=caesura.Ranks(shard=1))
    step(*_batch(rank, 0))
    for call in (step.gather_state, lambda: step.save(path)):
        with pytest.raises(caesura.StepRefused, match="the call is .* on rank 0, .* on rank 1"):
            call() if rank == 0 else step(*_batch(rank, 1))
    step.gather_state()
    step(*_batch(rank, 1))
    step.save(path)
    same_on_all_ranks(net.parameters())
    return True


def members(rank):
    """A process group's members join, and no others."""
    group = dist.new_group([1, 2])
    torch.manual_seed(rank)
    net = _net()
    if rank == 0:
        return True
    torch.manual_seed(1)
    want = _net()
    step = caesura.compile_step(net, CE, _sgd(net, lr=0.0), ranks=caesura.Ranks(group))
    step(*_batch(rank, 0))
    assert torch.equal(net[0].weight, want[0].weight)
    return True


@pytest.mark.parametrize("body", [frozen, statistics, later_head, other_divided, state, refusals, options, later, counts, alone,
                                  alone_in_a_capture, unmade, batches_end,
                                  lengths_of_a_second_step], ids=lambda body: body.__name__)
def test_two_ranks(body):
    run_ranks(2, body, seconds=60)


def test_programs_from_the_disk(tmp_path):
    run_ranks(2, from_disk, str(tmp_path), seconds=60)


def test_calls_for_all_ranks(tmp_path):
    run_ranks(2, calls, str(tmp_path / "step.ckpt"), seconds=60)


def test_members_of_a_group():
    run_ranks(3, members, seconds=60)


@pytest.mark.parametrize("ends", [True, False], ids=("the process ends", "it waits elsewhere"))
def test_a_rank_leaves_its_loop(ends):
    run_ranks(2, loop_ends, ends, seconds=60 if ends else 4)
