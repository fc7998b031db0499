# SPDX-License-Identifier: Apache-2.0
"""Accelerate prepares, and the whole step of its loop is one program."""

import accelerate
import digits
import torch

import caesura
from caesura.integrations.accelerate import compile_step

images, labels, test_images, test_labels = digits.load()
accelerator = accelerate.Accelerator(cpu=True)
model = digits.net()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=32, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
step = compile_step(accelerator, model, torch.nn.functional.cross_entropy, optimizer)
for _ in range(10):
    for x, y in loader:
        loss = step(x, y)
model.eval()
with torch.no_grad():
    print(f"accuracy {digits.accuracy(model(test_images), test_labels):.3f}")
print(caesura.stats())
