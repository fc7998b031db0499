# SPDX-License-Identifier: Apache-2.0
"""The PyTorch modules of the workloads: written out, dropout 0, weights from torch's seed."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


def mlp(*widths: int) -> nn.Module:
    layers = []
    for before, after in zip(widths, widths[1:]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class RmsNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


@dataclass(frozen=True)
class GptSizes:
    layers: int = 6
    width: int = 384
    heads: int = 6
    time: int = 128
    vocabulary: int = 65
    activation: str = "gelu"  # "gelu", "gelu-tanh" or "silu"
    norm: str = "layer"       # "layer" or "rms"
    tied: bool = False        # the head's weight is the token table's


def _activation(name: str) -> nn.Module:
    return {"gelu": nn.GELU(), "gelu-tanh": nn.GELU(approximate="tanh"), "silu": nn.SiLU()}[name]


class GptBlock(nn.Module):
    def __init__(self, sizes: GptSizes):
        super().__init__()
        width = sizes.width
        norm = {"layer": nn.LayerNorm, "rms": RmsNorm}[sizes.norm]
        self.heads = sizes.heads
        self.norm_1, self.norm_2 = norm(width), norm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.activation = _activation(sizes.activation)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm_1(x)).split(width, dim=2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(self.activation(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    """A decoder-only transformer; scores of the next token, [batch * time, vocabulary]."""

    def __init__(self, sizes: GptSizes):
        super().__init__()
        self.token = nn.Embedding(sizes.vocabulary, sizes.width)
        self.position = nn.Embedding(sizes.time, sizes.width)
        self.blocks = nn.ModuleList(GptBlock(sizes) for _ in range(sizes.layers))
        self.norm = {"layer": nn.LayerNorm, "rms": RmsNorm}[sizes.norm](sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        _initialise(self)
        if sizes.tied:
            self.head.weight = self.token.weight

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


@dataclass(frozen=True)
class LlamaSizes:
    layers: int = 4
    width: int = 256
    hidden: int = 688
    heads: int = 8
    kv_heads: int = 4
    time: int = 128
    vocabulary: int = 2048


class LlamaBlock(nn.Module):
    """RMSNorm, rotary positions, grouped key and value heads, a SiLU-gated MLP; no biases."""

    def __init__(self, sizes: LlamaSizes):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = sizes.heads, sizes.kv_heads, sizes.width // sizes.heads
        kv_width = sizes.kv_heads * self.head_width
        linear = lambda before, after: nn.Linear(before, after, bias=False)
        self.norm_1, self.norm_2 = RmsNorm(sizes.width), RmsNorm(sizes.width)
        self.q, self.o = linear(sizes.width, sizes.width), linear(sizes.width, sizes.width)
        self.k, self.v = linear(sizes.width, kv_width), linear(sizes.width, kv_width)
        self.gate, self.up = linear(sizes.width, sizes.hidden), linear(sizes.width, sizes.hidden)
        self.down = linear(sizes.hidden, sizes.width)

    def _split(self, x, heads):
        return x.view(x.shape[0], x.shape[1], heads, self.head_width).transpose(1, 2)

    def forward(self, x, cos, sin):
        def rotate(t):
            low, high = t.chunk(2, dim=-1)
            return t * cos + torch.cat((-high, low), dim=-1) * sin

        y = self.norm_1(x)
        q = rotate(self._split(self.q(y), self.heads))
        k = rotate(self._split(self.k(y), self.kv_heads))
        v = self._split(self.v(y), self.kv_heads)
        shared = self.heads // self.kv_heads
        spread = lambda t: t[:, :, None].expand(-1, -1, shared, -1, -1).flatten(1, 2)
        attended = F.scaled_dot_product_attention(q, spread(k), spread(v), is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, sizes: LlamaSizes):
        super().__init__()
        self.token = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(LlamaBlock(sizes) for _ in range(sizes.layers))
        self.norm = RmsNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        half = sizes.width // sizes.heads // 2
        angles = torch.outer(torch.arange(sizes.time), 10000.0 ** (-torch.arange(half) / half)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        _initialise(self)

    def forward(self, tokens):
        x, time = self.token(tokens), tokens.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:time], self.sin[:time])
        return self.head(self.norm(x)).flatten(0, 1)


def _initialise(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def digits_cnn() -> nn.Module:
    """The net of the digits example."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 2 * 2, 10))


class ResidualBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.conv_1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv_2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm_1, self.norm_2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.shortcut = nn.Identity() if stride == 1 and before == after else nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        y = self.norm_2(self.conv_2(F.relu(self.norm_1(self.conv_1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet18(classes: int = 1000) -> nn.Module:
    widths = [64, 64, 128, 256, 512]
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for i, (before, after) in enumerate(zip(widths, widths[1:])):
        layers += [ResidualBlock(before, after, 1 if i == 0 else 2), ResidualBlock(after, after, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
