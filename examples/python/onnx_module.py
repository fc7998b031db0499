# SPDX-License-Identifier: Apache-2.0
"""An ONNX model as a part of a PyTorch module: torch tensors in and out, gradients through it."""

import digits
import torch

import caesura

images, labels, test_images, test_labels = digits.load()
digits.export("digits.onnx")
body = caesura.OnnxModule("digits.onnx")
head = torch.nn.Linear(10, 10)
optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=3e-3)
for x, y in digits.batches(images, labels, epochs=10):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(head(torch.relu(body(images=x))), y)
    loss.backward()
    optimizer.step()
with torch.no_grad():
    print(f"accuracy {digits.accuracy(head(torch.relu(body(images=test_images))), test_labels):.3f}")
