# SPDX-License-Identifier: Apache-2.0
"""A convolutional net in Lightning's Trainer."""

import lightning
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

from caesura.integrations.lightning import CaesuraCallback, CaesuraStrategy


class Task(lightning.LightningModule):
    def __init__(self, loop):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                                 nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                                 nn.Flatten(), nn.Linear(32 * 49, 10))
        if loop.route in ("compile", "autotune"):
            self.net = loop.module(self.net)

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def run(loop):
    data = TensorDataset(torch.randn(512, 1, 28, 28), torch.randint(10, (512,)))
    loader, task = DataLoader(data, batch_size=32), Task(loop)
    if loop.route == "step":
        step = loop.step(task.net, nn.functional.cross_entropy, task.configure_optimizers())
        while True:
            for x, y in loader:
                loop.done(step(x, y))
    loop.hook()
    strategy = "auto"
    if loop.route == "loop":
        strategy = CaesuraStrategy(step_options={"masks": "pytorch"})
        loop.watch(strategy)
    trainer = lightning.Trainer(max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                strategy=strategy, callbacks=[CaesuraCallback()] if loop.route == "wrap" else [])
    trainer.fit(task, loader)
