# SPDX-License-Identifier: Apache-2.0
"""Attention takes keys and values without the repetition for groups of heads, with the same results."""

import copy

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import caesura
from caesura.rewrites.partition import partition

BATCH, HEADS, TIME, WIDTH = 2, 6, 9, 8
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def repeat(x, group):
    batch, heads, time, width = x.shape
    return x[:, :, None].expand(batch, heads, group, time, width).reshape(batch, heads * group, time, width)


class Attention(torch.nn.Module):
    """mask: True if one is given. kept: True if the repetition of the keys has another reader."""

    def __init__(self, key_heads, mask, kept, causal=False):
        super().__init__()
        self.group, self.mask, self.kept, self.causal = HEADS // key_heads, mask, kept, causal
        self.key, self.value = (torch.nn.Linear(HEADS * WIDTH, key_heads * WIDTH) for _ in range(2))

    def forward(self, x):
        def heads(t):
            return t.unflatten(-1, (-1, WIDTH)).transpose(1, 2)

        key, value = repeat(heads(self.key(x)), self.group), repeat(heads(self.value(x)), self.group)
        mask = torch.ones(TIME, TIME, dtype=torch.bool).tril() if self.mask else None
        y = scaled_dot_product_attention(heads(x), key, value, attn_mask=mask, is_causal=self.causal)
        return y * key if self.kept else y


def shapes_of_keys(graph):
    return [node.args[1].meta["val"].shape for node in graph.find_nodes(op="call_function", target=ATTENTION)]


@pytest.mark.parametrize("key_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("mask, kept, causal", [(False, False, False), (True, False, False), (False, True, False), (False, False, True)])
def test_agrees_with_eager(key_heads, mask, kept, causal):
    torch.manual_seed(0)
    torch._dynamo.reset()
    module, x = Attention(key_heads, mask, kept, causal), torch.randn(BATCH, TIME, HEADS * WIDTH, requires_grad=True)
    eager, x_eager = copy.deepcopy(module), x.detach().clone().requires_grad_()
    wrapped, weight = caesura.wrap(module), torch.randn(BATCH, HEADS, TIME, WIDTH)
    with caesura.strict():
        y = wrapped(x)
        (y * weight).sum().backward()
        with torch.no_grad():
            y_alone = wrapped(x)
    want = eager(x_eager)
    (want * weight).sum().backward()
    for got, expected in [(y, want), (y_alone, want), (x.grad, x_eager.grad),
                          *((p.grad, q.grad) for p, q in zip(module.parameters(), eager.parameters()))]:
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kept", [False, True])
def test_nothing_repeated_is_saved(kept):
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    x = torch.randn(BATCH, TIME, HEADS * WIDTH)
    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep, partition_fn=partition)
    torch.compile(Attention(2, False, kept), backend=backend)(x).sum().backward()
    forward, backward = (g.graph for g in graphs)
    assert shapes_of_keys(forward) == [(BATCH, HEADS if kept else 2, TIME, WIDTH)]
    (output,) = forward.find_nodes(op="output")
    saved = [n.meta["val"].shape for n in output.args[0][1:] if isinstance(n, torch.fx.Node)]
    repeated = (BATCH, 2, HEADS // 2, TIME, WIDTH)
    sums = [n for n in backward.find_nodes(op="call_function", target=torch.ops.aten.sum.dim_IntList)
            if n.args[0].meta["val"].shape == repeated]
    assert bool(sums) == kept
    if not kept:  # the attention's result and input may each be saved once
        assert sum(s == (BATCH, HEADS, TIME, WIDTH) for s in saved) <= 2


class Masked(torch.nn.Module):
    """Attention as PyTorch's own function, or written out."""

    def __init__(self, written):
        super().__init__()
        self.written = written

    def forward(self, query, key, value, mask):
        if not self.written:
            return scaled_dot_product_attention(query, key, value, attn_mask=mask)
        scores = query @ key.transpose(-1, -2) * 0.35
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        return scores.softmax(-1) @ value


def gradients_of(module, inputs, mask):
    output = module(*inputs, mask)
    return [output, *torch.autograd.grad((output * output).sum(), inputs)]


@pytest.mark.parametrize("low", [-torch.inf, torch.finfo(torch.float32).min, None], ids=["inf", "min", "bool"])
@pytest.mark.parametrize("written", [False, True], ids=["sdpa", "written"])
def test_queries_that_see_nothing_are_as_in_eager(written, low):
    inputs = [torch.randn(2, 2, 6, 8, requires_grad=True) for _ in range(3)]
    seen = torch.rand(6, 6) < 0.6
    seen[2] = False
    mask = seen if low is None else torch.zeros(6, 6).masked_fill(~seen, low)
    results = []
    # PyTorch's own CPU kernel gives wrong gradients if the scores of a row are about finfo.min.
    with sdpa_kernel(SDPBackend.MATH):
        results.append(gradients_of(Masked(written), inputs, mask))
    results.append(gradients_of(caesura.wrap(Masked(written)), inputs, mask))
    torch.testing.assert_close(results[1], results[0], equal_nan=True, rtol=1e-4, atol=1e-5)
    assert results[0][0].isnan().any() == (written and low != torch.finfo(torch.float32).min)


@pytest.mark.parametrize("scale", [None, 0.3, 0.5])
@pytest.mark.parametrize("frontend", [caesura.wrap, torch.compile], ids=["wrap", "compile"])
def test_float64_scales_are_not_rounded_to_float32(frontend, scale):
    class Scaled(torch.nn.Module):
        def forward(self, q, k, v):
            return scaled_dot_product_attention(q, k, v, scale=scale)

    torch.manual_seed(0)
    inputs = [torch.randn(BATCH, HEADS, TIME, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    module = frontend(Scaled()) if frontend is caesura.wrap else torch.compile(Scaled(), backend="caesura")
    results = []
    for run in (Scaled(), module):
        y = run(*inputs)
        results.append([y.detach(), *torch.autograd.grad(y.square().sum(), inputs)])
    for expected, actual in zip(*results):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
