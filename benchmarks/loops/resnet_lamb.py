# SPDX-License-Identifier: Apache-2.0
"""timm's ResNet-18 with timm's Lamb."""

import timm
import torch
from timm.optim import Lamb


def train(loop, name, optimizer, lr, size):
    model = timm.create_model(name, num_classes=10)
    optimizer = optimizer(model.parameters(), lr=lr, weight_decay=0.02)
    loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    model, optimizer = loop.module(model), loop.optimizer(optimizer)
    images, labels = torch.randn(256, 3, size, size), torch.randint(10, (256,))
    while True:
        chosen = torch.randint(256, (16,))
        loss = loss_fn(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loop.done(loss)


def run(loop):
    train(loop, "resnet18", Lamb, 5e-3, 96)
