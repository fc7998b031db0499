# SPDX-License-Identifier: Apache-2.0
"""The recipe examples/recipes/code_search.py: MiniLM on pairs of sentences and code, in a loop of its own."""

import pathlib
import sys

import torch

sys.path.append(str(pathlib.Path(__file__).parents[2] / "examples" / "recipes"))
import code_search  # noqa: E402
import functions  # noqa: E402


def run(loop):
    tokenizer, model = code_search.load()
    train, _ = functions.read()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)
    own = torch.arange(16)
    step = loop.step(model, torch.nn.functional.cross_entropy, optimizer, clip_norm=1.0) if loop.route == "step" else None
    called, updated = loop.module(model), loop.optimizer(optimizer)
    while True:
        for at in range(0, len(train) - 16, 16):
            batch = code_search.encode(tokenizer, train[at:at + 16])
            if step:
                loop.done(step(*batch, own))
                continue
            loss = torch.nn.functional.cross_entropy(called(*batch), own)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            updated.step()
            updated.zero_grad()
            loop.done(loss)
