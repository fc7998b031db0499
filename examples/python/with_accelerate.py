# SPDX-License-Identifier: Apache-2.0
"""Accelerate prepares a wrapped model as any other."""

import accelerate
import digits
import torch

import caesura

images, labels, test_images, test_labels = digits.load()
accelerator = accelerate.Accelerator(cpu=True)
model = caesura.wrap(digits.net())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=32, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
        optimizer.step()
model.eval()
with torch.no_grad():
    print(f"accuracy {digits.accuracy(model(test_images), test_labels):.3f}")
print(caesura.stats())
