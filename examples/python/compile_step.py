# SPDX-License-Identifier: Apache-2.0
"""The whole step as one program: forward, loss, backward, clipping and AdamW."""

import digits
import torch

import caesura

images, labels, test_images, test_labels = digits.load()
model = digits.net()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=220)
step = caesura.compile_step(model, torch.nn.functional.cross_entropy, optimizer, clip_norm=1.0)
for x, y in digits.batches(images, labels, epochs=10):
    loss = step(x, y)
    scheduler.step()
with torch.no_grad():
    print(f"accuracy {digits.accuracy(model(test_images), test_labels):.3f}")
