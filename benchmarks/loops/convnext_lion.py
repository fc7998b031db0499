# SPDX-License-Identifier: Apache-2.0
"""timm's ConvNeXt with timm's Lion."""

import timm
import torch
from timm.optim import Lion


def run(loop):
    model = timm.create_model("convnext_atto", num_classes=10)
    optimizer = Lion(model.parameters(), lr=1e-4, weight_decay=0.02)
    loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    model, optimizer = loop.module(model), loop.optimizer(optimizer)
    images, labels = torch.randn(256, 3, 64, 64), torch.randint(10, (256,))
    while True:
        chosen = torch.randint(256, (16,))
        loss = loss_fn(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loop.done(loss)
