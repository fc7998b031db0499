# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own interface: caesura as a backend of torch.compile."""

import digits
import torch

images, labels, test_images, test_labels = digits.load()
model = torch.compile(digits.net(), backend="caesura")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for x, y in digits.batches(images, labels, epochs=10):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
with torch.no_grad():
    print(f"accuracy {digits.accuracy(model(test_images), test_labels):.3f}")
