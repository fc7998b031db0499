# SPDX-License-Identifier: Apache-2.0
"""A character GPT in a plain loop: gradients clipped, learning rate by cosine."""

import pathlib

import torch
import torch.nn as nn
import torch.nn.functional as F

WIDTH, HEADS, LENGTH, BATCH = 256, 4, 128, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = (t.view(rows, length, HEADS, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(WIDTH, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, length, WIDTH)
        x = x + self.out(y)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(4)])
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, words))

    def forward(self, ids):
        return self.head(self.blocks(self.tokens(ids) + self.places.weight[: ids.shape[1]]))


def loss_fn(scores, targets):
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def run(loop):
    text = pathlib.Path(torch.__file__).with_name("functional.py").read_text()
    letters = {c: i for i, c in enumerate(sorted(set(text)))}
    ids, model = torch.tensor([letters[c] for c in text]), Model(len(letters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    step = loop.step(model, loss_fn, optimizer, clip_norm=1.0) if loop.route == "step" else None
    called, optimizer = loop.module(model), optimizer if step else loop.optimizer(optimizer)
    while True:
        starts = torch.randint(len(ids) - LENGTH - 1, (BATCH,))
        rows = torch.stack([ids[s : s + LENGTH + 1] for s in starts])
        if step:
            loss = step(rows[:, :-1], rows[:, 1:])
        else:
            loss = loss_fn(called(rows[:, :-1]), rows[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        schedule.step()
        loop.done(loss)
