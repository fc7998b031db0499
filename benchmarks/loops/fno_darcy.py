# SPDX-License-Identifier: Apache-2.0
"""neuraloperator's FNO on fields, in its documented loop."""

import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO


def run(loop):
    model = FNO(n_modes=(12, 12), hidden_channels=24, in_channels=1, out_channels=1, n_layers=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-4)  # complex parameters: not fused
    loss_fn = LpLoss(d=2, p=2)
    model, optimizer = loop.module(model), loop.optimizer(optimizer)
    fields = torch.randn(64, 1, 32, 32)
    targets = fields.cumsum(-1).cumsum(-2) / 32
    while True:
        chosen = torch.randint(64, (8,))
        loss = loss_fn(model(fields[chosen]), targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loop.done(loss)
