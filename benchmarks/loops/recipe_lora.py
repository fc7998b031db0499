# SPDX-License-Identifier: Apache-2.0
"""The recipe examples/recipes/docstring_lora.py: PEFT's LoRA on SmolLM2-135M, in a loop of its own."""

import pathlib
import sys
import tempfile

import peft
import torch

sys.path.append(str(pathlib.Path(__file__).parents[2] / "examples" / "recipes"))
import docstring_lora  # noqa: E402
import functions  # noqa: E402


def run(loop):
    tokenizer, base = docstring_lora.load(None, pathlib.Path(tempfile.gettempdir()) / "smollm2")
    model = peft.get_peft_model(base, docstring_lora.ADAPTER)
    train = [f for f in functions.read()[0] if len(f.signature) <= 60]
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.0, fused=True)
    step = loop.step(model, None, optimizer, clip_norm=1.0) if loop.route == "step" else None
    called, updated = loop.module(model), loop.optimizer(optimizer)
    while True:
        for at in range(0, len(train) - 4, 4):
            batch = docstring_lora.encode(tokenizer, train[at:at + 4])
            if step:
                loop.done(step(**batch))
                continue
            loss = called(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            updated.step()
            updated.zero_grad()
            loop.done(loss)
