# SPDX-License-Identifier: Apache-2.0
"""A trained ONNX model as frozen features for PyTorch: torch tensors in and out, without copies."""

import digits
import torch

import caesura
from caesura import onnxruntime

images, labels, test_images, test_labels = digits.load()
digits.export("digits.onnx")
session = caesura.TrainingSession("digits.onnx", loss="cross_entropy", target="labels",
                                  optimizer=caesura.optim.AdamW(lr=3e-3))
for x, y in digits.batches(images, labels, epochs=10):
    session.step({"images": x, "labels": y})
session.export("trained.onnx")

features = onnxruntime.OnnxModule("trained.onnx")
with torch.no_grad():
    train_features, test_features = features(images=images), features(images=test_images)
# The new task: the model was not trained for it.
is_odd = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.AdamW(is_odd.parameters(), lr=1e-2)
for x, y in digits.batches(train_features, labels % 2, epochs=20):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(is_odd(x), y)
    loss.backward()
    optimizer.step()
print(f"accuracy {digits.accuracy(is_odd(test_features), test_labels % 2):.3f}")
