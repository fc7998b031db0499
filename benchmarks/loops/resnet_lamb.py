# SPDX-License-Identifier: Apache-2.0
"""timm's ResNet-18 with timm's Lamb."""

import timm
import torch
from timm.optim import Lamb


def run(loop):
    model = timm.create_model("resnet18", num_classes=10)
    optimizer = Lamb(model.parameters(), lr=5e-3, weight_decay=0.02)
    loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    model, optimizer = loop.module(model), loop.optimizer(optimizer)
    images, labels = torch.randn(256, 3, 96, 96), torch.randint(10, (256,))
    while True:
        chosen = torch.randint(256, (16,))
        loss = loss_fn(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loop.done(loss)
