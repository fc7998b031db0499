# SPDX-License-Identifier: Apache-2.0
"""A captured forward saves each repeated value once for its backward, and no other values are merged."""

import copy

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

import caesura
from caesura.rewrites.partition import partition

aten = torch.ops.aten


def halves(function, *inputs):
    """Returns the forward and backward graph of a function."""
    graphs = []

    def keep(module, _):
        graphs.append(module.graph)
        return module.forward

    torch._dynamo.reset()
    torch.compile(function, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep, partition_fn=partition))(*inputs).backward()
    return graphs


def count(graph, packet):
    return sum(getattr(n.target, "overloadpacket", None) is packet for n in graph.nodes)


def test_equal_calls_become_one():
    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    forward, _ = halves(lambda x, w: ((x @ w).exp() * (x @ w).exp().cos()).sum(), x, w)
    assert count(forward, aten.mm) == 1
    assert count(forward, aten.exp) == 1


def test_arguments_that_compare_equal_are_not_the_same():
    x = torch.arange(4, requires_grad=False)
    w = torch.randn(4, requires_grad=True)
    forward, _ = halves(lambda x, w: ((x * 2).float() * w + (x * 2.0) * w).sum(), x, w)
    assert count(forward, aten.mul) == 4  # x * 2 is an integer tensor, x * 2.0 is not


def test_random_calls_stay_apart():
    w = torch.randn(64, requires_grad=True)
    forward, _ = halves(lambda w: (torch.rand_like(w) * w + torch.rand_like(w) * w).sum(), w)
    assert count(forward, aten.rand_like) + count(forward, aten.rand) == 2


def test_sizes_that_depend_on_data_stay_apart():
    x, w = torch.randn(8), torch.randn(8, requires_grad=True)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        forward, _ = halves(lambda x, w: (w[x.nonzero()].sum() + w[x.nonzero()].exp().sum()), x, w)
    assert count(forward, aten.nonzero) == 2


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        return y.exp(), y.exp()


def test_equal_results_are_tensors_of_their_own():
    torch.manual_seed(0)
    module, x = Pair(), torch.randn(3, 4)
    want = module(x)[1].detach().clone()
    first, second = caesura.wrap(module)(x)
    assert first.data_ptr() != second.data_ptr()
    second.sum().backward()
    gradient = module.linear.weight.grad.clone()
    module.linear.weight.grad = None
    module(x)[1].sum().backward()
    torch.testing.assert_close(gradient, module.linear.weight.grad)
    with torch.no_grad():
        first.zero_()
    torch.testing.assert_close(second, want)


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        before = self.calls * x
        self.calls.add_(1)
        return self.linear(before) + self.linear(self.calls * x)


@pytest.mark.parametrize("training", [True, False])
def test_reads_behind_a_write_see_it(training):
    torch.manual_seed(0)
    module, x = Counting(), torch.randn(3, 4)
    eager = Counting()
    eager.load_state_dict(module.state_dict())
    wrapped = caesura.wrap(module)
    with torch.set_grad_enabled(training):
        for _ in range(2):
            torch.testing.assert_close(wrapped(x), eager(x))
    assert module.calls == 2


def test_batch_norms_within_a_checkpoint():
    """A batch within a checkpoint counts once, as in PyTorch's own torch.compile; eager counts it twice."""
    class Block(torch.nn.Module):
        def __init__(self, checkpointed):
            super().__init__()
            torch.manual_seed(0)
            self.checkpointed = checkpointed
            self.block = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Tanh())

        def forward(self, x):
            if self.checkpointed:
                return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)
            return self.block(x)

    torch._dynamo.reset()
    x = torch.randn(6, 4)
    expected, module = Block(False), Block(True)
    for net in (expected, caesura.wrap(module)):
        net(x).square().sum().backward()
    for a, b in zip((*module.buffers(), *(p.grad for p in module.parameters())),
                    (*expected.buffers(), *(p.grad for p in expected.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

    def block(self, x):
        q, k, v = self.first(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.last(y.transpose(1, 2).flatten(2)).tanh()

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False).square().mean()


def test_attention_within_a_checkpoint_is_ours():
    torch._dynamo.reset()
    module, x = Checkpointed(), torch.randn(2, 6, 8)
    other = copy.deepcopy(module)
    module(x).backward()
    with caesura.strict():
        caesura.wrap(other)(x).backward()
    for expected, actual in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad, rtol=1e-4, atol=1e-6)
