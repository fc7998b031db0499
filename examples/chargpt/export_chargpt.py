# SPDX-License-Identifier: Apache-2.0
"""Writes the character GPT's inputs: chargpt.onnx, exported from PyTorch, and corpus.txt, the text of Python's
standard-library sources with rare characters left out."""

import argparse
import collections
import math
import os
import sysconfig

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm_1(x)).split(width, dim=2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        mask = torch.ones(time, time, dtype=torch.bool).tril()
        attended = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class CharGpt(nn.Module):
    """A decoder-only transformer over characters; scores of the next character at every position."""

    def __init__(self, vocabulary: int, layers: int = 4, width: int = 128, heads: int = 4, context: int = 128):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def corpus(limit: int = 2_000_000) -> str:
    """The top-level modules of the standard library, one after the other, up to `limit` characters. Characters that
    make up less than one in 100,000 are left out."""
    folder = sysconfig.get_paths()["stdlib"]
    parts, size = [], 0
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".py") or size >= limit:
            continue
        with open(os.path.join(folder, name), encoding="utf-8", errors="ignore") as file:
            parts.append(file.read())
        size += len(parts[-1])
    text = "".join(parts)[:limit]
    counts = collections.Counter(text)
    return "".join(c for c in text if counts[c] * 100_000 >= len(text) and ord(c) < 128)


def export(folder: str, vocabulary: int, seed: int = 0, **sizes) -> CharGpt:
    """Writes chargpt.onnx into folder and returns the module whose weights the file holds."""
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(seed)
    module = CharGpt(vocabulary, **sizes).train()
    tokens = torch.zeros(2, sizes.get("context", 128), dtype=torch.int64)
    program = torch.onnx.export(module, (tokens,), dynamo=True, optimize=False, verbose=False, input_names=["tokens"],
                                output_names=["scores"],
                                dynamic_shapes={"tokens": {0: torch.export.Dim("batch"), 1: torch.export.Dim("time", max=128)}})
    program.save(os.path.join(folder, "chargpt.onnx"))
    return module


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    arguments = parser.parse_args()
    text = corpus()
    export(arguments.folder, len(set(text)))
    with open(os.path.join(arguments.folder, "corpus.txt"), "w", encoding="ascii") as file:
        file.write(text)
