# SPDX-License-Identifier: Apache-2.0
"""A language model of an LSTM over packed sequences."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(200, 128), nn.Linear(256, 200)
        self.lstm = nn.LSTM(128, 256, batch_first=True)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embedding(ids), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=ids.shape[1])
        return self.head(hidden)


def loss_fn(scores, targets):
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def run(loop):
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    step = loop.step(model, loss_fn, optimizer, clip_norm=0.25) if loop.route == "step" else None
    called, optimizer = loop.module(model), optimizer if step else loop.optimizer(optimizer)
    ids = torch.randint(1, 200, (256, 65))
    lengths = torch.randint(16, 65, (256,))
    while True:
        chosen = torch.randint(256, (16,))
        rows, sizes = ids[chosen], lengths[chosen]
        targets = rows[:, 1:].masked_fill(torch.arange(64) >= sizes[:, None], -100)
        if step:
            loss = step(rows[:, :-1], sizes, targets)
        else:
            loss = loss_fn(called(rows[:, :-1], sizes), targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
        loop.done(loss)
