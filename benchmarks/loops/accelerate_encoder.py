# SPDX-License-Identifier: Apache-2.0
"""A transformer's encoder that classifies, in Accelerate's documented loop: accumulation, clipping, a schedule."""

import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from caesura.integrations.accelerate import compile_step


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(512, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, activation="gelu", batch_first=True, norm_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(128, 10)

    def forward(self, ids):
        return self.head(self.layers(self.table(ids)).mean(1))


def run(loop):
    loss_fn, accelerator = nn.functional.cross_entropy, Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = loop.module(Classifier())
    optimizer = loop.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=100)
    loader = DataLoader(TensorDataset(torch.randint(512, (512, 32)), torch.randint(10, (512,))), batch_size=8)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    if loop.route == "loop":
        step = compile_step(accelerator, model, loss_fn, optimizer, clip_norm=1.0, masks="pytorch")
    while True:
        for ids, labels in loader:
            if loop.route == "loop":
                loss = step(ids, labels)
                schedule.step()
            else:
                with accelerator.accumulate(model):
                    loss = loss_fn(model(ids), labels)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
            loop.record(loss)
            if accelerator.sync_gradients:
                loop.done()
