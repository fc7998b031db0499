# SPDX-License-Identifier: Apache-2.0
"""An ONNX model is trained from Python: the session builds the gradient and the optimizer."""

import digits

import caesura

images, labels, test_images, test_labels = digits.load()
digits.export("digits.onnx")
session = caesura.TrainingSession("digits.onnx", loss="cross_entropy", target="labels",
                                  optimizer=caesura.optim.AdamW(lr=3e-3))
for x, y in digits.batches(images, labels, epochs=10):
    loss = session.step({"images": x, "labels": y})
loss, outputs = session.evaluate({"images": test_images, "labels": test_labels})
print(f"accuracy {digits.accuracy(outputs[0], test_labels):.3f}")
session.export("trained.onnx")
