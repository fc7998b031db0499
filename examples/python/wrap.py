# SPDX-License-Identifier: Apache-2.0
"""A PyTorch loop as you know it: only the module is wrapped."""

import digits
import torch

import caesura

images, labels, test_images, test_labels = digits.load()
model = caesura.wrap(digits.net())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for x, y in digits.batches(images, labels, epochs=10):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    print(f"accuracy {digits.accuracy(model(test_images), test_labels):.3f}")
print(caesura.stats())
