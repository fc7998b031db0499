# SPDX-License-Identifier: Apache-2.0
"""Calls of a compiled step that one rank alone refuses or does not make: the other ranks are told."""

import contextlib
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from rank_processes import run_ranks, same_on_all_ranks  # noqa: E402
from rank_steps import CE, batch_of, in_turn, mlp, refused, sgd, values_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.join import Join  # noqa: E402

import caesura  # noqa: E402
from caesura import torch_kernels  # noqa: E402

pytestmark = pytest.mark.skipif(not torch_kernels.built(), reason="libcaesura_torch was not built")


def alone(rank):
    """A rank that refuses a call alone tells the others at once; bad input does not end anything."""
    net = mlp()
    step = caesura.compile_step(net, CE, sgd(net))
    for trained in (False, True):
        hook = net[0].weight.register_hook(lambda g: 2 * g) if rank == 1 else None
        began = time.monotonic()
        refused(step, rank, *(["rank 1 has refused this call"] if rank == 0 else []), "gradient hooks are not called by a step")
        assert time.monotonic() - began < 30
        if hook is not None:
            hook.remove()
        if not trained:
            x, y = batch_of(rank, 0)
            if rank == 1:
                with pytest.raises((ValueError, RuntimeError, IndexError)) as error:
                    step(x[:, :5], y)
                assert not isinstance(error.value, (caesura.StepRefused, caesura.RankFailure))
            step(x, y)
            same_on_all_ranks(net.parameters())
    step(*batch_of(rank, 1))
    same_on_all_ranks(net.parameters())
    step = caesura.compile_step(net, CE, sgd(net), memory_budget=1 if rank == 1 else 0)
    for call in range(2):
        began = time.monotonic()
        with pytest.raises(MemoryError if rank == 1 else caesura.StepRefused, match="memory_budget: expected at least"):
            step(*batch_of(rank, call))
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
    step = caesura.compile_step(net, CE, sgd(net))
    net.breaks = rank == 1
    began = time.monotonic()
    refused(step, rank, "the step cannot be one program", *(["rank 1 has refused this call"] if rank == 0 else []))
    assert time.monotonic() - began < 30
    net.breaks = False
    step(*batch_of(rank, 0))
    same_on_all_ranks(net.parameters())
    return True


def unmade(rank):
    """A rank that cannot make its step tells the others, before or after they have called theirs. It does not wait for them."""
    group = dist.new_group([0, 1])
    wrong = {"clip_norm": -1.0}, {"ranks": caesura.Ranks(group, shard=2), "accumulation_steps": 2}
    for options in wrong:
        for waits in (0, 1):  # the rank that comes late
            ranks = options.get("ranks", caesura.Ranks(group))
            net = mlp()
            if rank == waits:
                time.sleep(1)
            if rank == 1:
                began = time.monotonic()
                with pytest.raises(ValueError, match="clip_norm is a norm|shard=2 needs accumulation_steps=1"):
                    caesura.compile_step(net, CE, sgd(net), **({"ranks": ranks} | options))
                assert waits == 1 or time.monotonic() - began < 0.5
            else:
                step = caesura.compile_step(net, CE, sgd(net), ranks=caesura.Ranks(group))
                began = time.monotonic()
                refused(step, rank, "rank 1 has refused", "clip_norm is a norm" if "clip_norm" in options else "shard=2 needs")
                assert time.monotonic() - began < 30
            if rank == 1:
                step = caesura.compile_step(net, CE, sgd(net), ranks=caesura.Ranks(group))
            for call in range(2):
                step(*batch_of(rank, call))
            same_on_all_ranks(net.parameters())
    for _ in range(2):  # all ranks refuse: no later step hears of it
        with pytest.raises(ValueError, match="clip_norm is a norm"):
            caesura.compile_step(net, CE, sgd(net), clip_norm=-1.0, ranks=caesura.Ranks(group))
    step = caesura.compile_step(net, CE, sgd(net), ranks=caesura.Ranks(group))
    step(*batch_of(rank, 0))
    same_on_all_ranks(net.parameters())
    return True


def batches_end(rank):
    """With Join a rank that runs out of batches ends the loop of all at once; those that end together go on."""
    for uneven in (0, 1):
        net, done = mlp(), 0
        step = caesura.compile_step(net, CE, sgd(net), accumulation_steps=1 + uneven)
        for more in (0, 2 * uneven, 0):
            began = time.monotonic()
            with contextlib.ExitStack() as refuses:
                if more:
                    words = "the call is a step on rank 0, the end of the batches on rank 1"
                    refuses.enter_context(pytest.raises(caesura.StepRefused, match=words))
                with Join([step]):
                    for i in range(2 + (more if rank == 0 else 0)):
                        step(*batch_of(rank, i))
                        done += 1
            assert time.monotonic() - began < 30
            same_on_all_ranks(net.parameters())
    return True


def loop_ends(rank, ends):
    """A rank leaves its loop without a word. The others' error says that it was lost where its process has ended, and otherwise, at
    the time-out, that nothing was heard of it."""
    net = mlp()
    step = caesura.compile_step(net, CE, sgd(net))
    for i in range(2):
        step(*batch_of(rank, i))
    if rank == 1:
        if not ends:
            with contextlib.suppress(RuntimeError):
                dist.barrier()
        return
    before = [value.detach().clone() for value in values_of(step)]
    with pytest.raises(caesura.RankFailure, match="losed by peer|reset by peer" if ends else "nothing was heard of rank 1"):
        step(*batch_of(rank, 2))
    assert all(map(torch.equal, before, values_of(step)))


def calls(rank, path):
    """A call that all ranks make says so where one of them calls something else."""
    net = mlp()
    step = caesura.compile_step(net, CE, torch.optim.AdamW(net.parameters()), ranks=caesura.Ranks(shard=1))
    step(*batch_of(rank, 0))
    for call in (step.gather_state, lambda: step.save(path)):
        with pytest.raises(caesura.StepRefused, match="the call is .* on rank 0, .* on rank 1"):
            call() if rank == 0 else step(*batch_of(rank, 1))
    step.gather_state()
    step(*batch_of(rank, 1))
    step.save(path)
    same_on_all_ranks(net.parameters())
    return True


def test_two_ranks():
    run_ranks(2, in_turn, [alone, alone_in_a_capture, unmade, batches_end], seconds=60)


def test_calls_for_all_ranks(tmp_path):
    run_ranks(2, calls, str(tmp_path / "step.ckpt"), seconds=60)


@pytest.mark.parametrize("ends", [True, False], ids=("the process ends", "it waits elsewhere"))
def test_a_rank_leaves_its_loop(ends):
    run_ranks(2, loop_ends, ends, seconds=60 if ends else 4)
