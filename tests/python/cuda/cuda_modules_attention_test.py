# SPDX-License-Identifier: Apache-2.0
"""Attention where PyTorch would choose a kernel of its own on a GPU: all of it is ours."""

import copy

import pytest
from standin_torch import DEVICE, cuda, fresh, stand_in, torch  # noqa: F401

import caesura

F = torch.nn.functional

EFFICIENT = torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION


class Encoder(torch.nn.Module):
    """Attention among the places of a sequence, some of them padding."""

    def __init__(self, dropout=0.0):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout, "gelu", batch_first=True, norm_first=True)
        self.layers, self.head = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), torch.nn.Linear(8, 3)

    def forward(self, x, padding):
        return self.head(self.layers(x, src_key_padding_mask=padding)).flatten(0, 1)


class Decoder(torch.nn.Module):
    """Attention to earlier places, with a mask that is added, then to other values of another length."""

    def __init__(self):
        super().__init__()
        self.own, self.other = (torch.nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x, memory):
        earlier = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        x = x + self.own(x, x, x, attn_mask=earlier, is_causal=True, need_weights=False)[0]
        return self.head(x + self.other(x, memory, memory, need_weights=False)[0]).flatten(0, 1)


class Learned(torch.nn.Module):
    """Attention whose mask is learned, and values of another width than the keys'."""

    def __init__(self):
        super().__init__()
        self.into, self.mask, self.head = torch.nn.Linear(8, 8), torch.nn.Parameter(torch.randn(5, 5)), torch.nn.Linear(4, 3)

    def forward(self, x):
        x = self.into(x)[:, None]
        x = F.scaled_dot_product_attention(x, x, x, self.mask) + x
        return self.head(F.scaled_dot_product_attention(x, x, x[..., :4])[:, 0]).flatten(0, 1)


def case(name):
    """(module, inputs, targets) on the GPU."""
    x, padding = torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    module, others = {"encoder": lambda: (Encoder(), [padding]), "decoder": lambda: (Decoder(), [torch.randn(2, 4, 8)]),
                      "learned": lambda: (Learned(), [])}[name]()
    return module.to(DEVICE), [t.to(DEVICE) for t in (x, *others)], torch.arange(10).to(DEVICE) % 3


@pytest.mark.parametrize("name", ["encoder", "decoder", "learned"])
@pytest.mark.parametrize("route", ["wrap", "compile_step"])
def test_attention_is_ours_whatever_pytorch_would_choose(cuda, name, route):  # noqa: F811
    eager, inputs, target = case(name)
    other = copy.deepcopy(eager)
    expected = F.cross_entropy(eager(*inputs), target)
    expected.backward()
    cuda.choose_attention(EFFICIENT)
    with caesura.strict():
        if route == "wrap":
            given = F.cross_entropy(caesura.wrap(other)(*inputs), target)
            given.backward()
        else:
            step = caesura.compile_step(other, F.cross_entropy, torch.optim.SGD(other.parameters(), lr=1.0))
            before = [p.detach().clone() for p in other.parameters()]
            given = step(*inputs, target)
            for p, old in zip(other.parameters(), before, strict=True):
                p.grad = old - p.detach()  # the update's gradient, at a rate of 1
    torch.testing.assert_close(given.detach().cpu(), expected.detach().cpu(), rtol=1e-5, atol=1e-6)
    for (label, p), q in zip(eager.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad.cpu(), rtol=1e-3, atol=1e-5, msg=lambda m, label=label: f"{label}: {m}")


def test_dropout_in_attention_is_part_of_a_step(cuda):  # noqa: F811
    module, (x, padding), target = Encoder(dropout=0.5).to(DEVICE), *case("encoder")[1:]
    cuda.choose_attention(EFFICIENT)
    step = caesura.compile_step(module, F.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.0))
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(float(step(x, padding, target)))
    assert losses[0] == losses[1] != losses[2]
