# SPDX-License-Identifier: Apache-2.0
"""The gradient of an ONNX model by its input: which pixels a classifier looks at, and an image made for a class."""

import digits
import numpy as np

import caesura
from caesura import onnxruntime

images, labels, test_images, test_labels = digits.load()
digits.export("digits.onnx")
training = caesura.TrainingSession("digits.onnx", loss="cross_entropy", target="labels",
                                   optimizer=caesura.optim.AdamW(lr=3e-3))
for x, y in digits.batches(images, labels, epochs=10):
    training.step({"images": x, "labels": y})
training.export("trained.onnx")

# scores_gradient weighs the scores: here it picks each image's own class.
session = onnxruntime.InferenceSession(caesura.gradient("trained.onnx", of="scores", by="images"))
own_class = np.eye(10, dtype=np.float32)[test_labels]
scores, slopes = session.run(None, {"images": test_images, "scores_gradient": own_class})
print(f"accuracy {digits.accuracy(scores, test_labels):.3f}")

# Saliency: of the 64 pixels the four that the scores depend on most.
saliency = np.abs(slopes).mean(0)
rows, columns = np.divmod(np.argsort(saliency)[-4:], 8)
print("looks at", sorted(zip(rows.tolist(), columns.tolist())))

# Design: from a grey image uphill to one that is a three.
image, three = np.full((1, 64), 0.5, np.float32), np.eye(10, dtype=np.float32)[[3]]
for _ in range(50):
    scores, slope = session.run(None, {"images": image, "scores_gradient": three})
    image = np.clip(image + 0.05 * slope, 0, 1)
print("designed a", scores.argmax())
