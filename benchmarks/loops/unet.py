# SPDX-License-Identifier: Apache-2.0
"""A Unet of segmentation_models_pytorch with its Dice loss."""

import segmentation_models_pytorch as smp
import torch


def run(loop):
    model = smp.Unet("resnet18", encoder_weights=None, classes=5)
    loss_fn = smp.losses.DiceLoss("multiclass")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    step = loop.step(model, loss_fn, optimizer) if loop.route == "step" else None
    called, optimizer = loop.module(model), optimizer if step else loop.optimizer(optimizer)
    images, masks = torch.randn(64, 3, 96, 96), torch.randint(5, (64, 96, 96))
    while True:
        chosen = torch.randint(64, (4,))
        if step:
            loss = step(images[chosen], masks[chosen])
        else:
            loss = loss_fn(called(images[chosen]), masks[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loop.done(loss)
