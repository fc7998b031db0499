# SPDX-License-Identifier: Apache-2.0
"""A small compiled step on ranks, its batches, and calls of it that are refused, for tests."""

import pytest
import torch
from torch import nn

import caesura

CE = nn.functional.cross_entropy


def batch_of(rank, call, rows=8, inputs=8):
    random = torch.Generator().manual_seed(10 * call + rank)
    return torch.randn(rows, inputs, generator=random), torch.randint(4, (rows,), generator=random)


def mlp(middle=nn.ReLU):
    return nn.Sequential(nn.Linear(8, 16), middle(), nn.Linear(16, 4))


def sgd(module, lr=0.1, **options):
    return torch.optim.SGD(module.parameters(), lr=lr, **options)


def values_of(step):
    state = [value for p in step.optimizer.state.values() for value in p.values() if isinstance(value, torch.Tensor)]
    return [*step.module.parameters(), *step.module.buffers(), *state]


def refused(step, rank, *words, call=0):
    """The call is refused on all ranks, in these words, and changes nothing. Returns the error."""
    before, micro_steps = [value.detach().clone() for value in values_of(step)], step.micro_steps
    with pytest.raises(caesura.StepRefused) as error:
        step(*batch_of(rank, call))
    for word in words:
        assert word in str(error.value), str(error.value)
    assert all(map(torch.equal, before, values_of(step))) and step.micro_steps == micro_steps
    return error.value


def in_turn(rank, bodies):
    """Runs the bodies of several tests on the same ranks: a capture in a process that has made one takes a fifth of the time."""
    for body in bodies:
        torch._dynamo.reset()
        body(rank)
    return True
