# SPDX-License-Identifier: Apache-2.0
"""timm's ViT with mixup and an average of the weights, as in timm's training script."""

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.utils import ModelEmaV3


def run(loop):
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=10, drop_path_rate=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    ema, mixup, loss_fn = ModelEmaV3(model), Mixup(mixup_alpha=0.8, num_classes=10), SoftTargetCrossEntropy()
    step = loop.step(model, loss_fn, optimizer) if loop.route == "step" else None
    called, optimizer = loop.module(model), optimizer if step else loop.optimizer(optimizer)
    images, labels = torch.randn(256, 3, 64, 64), torch.randint(10, (256,))
    updates = 0
    while True:
        chosen = torch.randint(256, (16,))
        x, y = mixup(images[chosen], labels[chosen])
        if step:
            loss = step(x, y)
        else:
            loss = loss_fn(called(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        updates += 1
        ema.update(model, step=updates)
        loop.done(loss)
