# SPDX-License-Identifier: Apache-2.0
"""A loss of your own in NumPy: the graph stops at its outputs, takes their gradients, and runs the backward."""

import digits
import numpy as np

import caesura

images, labels, test_images, test_labels = (part.numpy() for part in digits.load())
digits.export("digits.onnx")
module = caesura.SplitModule("digits.onnx")
for x, y in digits.batches(*(digits.torch.tensor(part) for part in (images, labels)), epochs=10):
    run = module.forward({"images": x.numpy()})
    scores = np.array(run.outputs["scores"])
    odds = np.exp(scores - scores.max(1, keepdims=True))
    slope = odds / odds.sum(1, keepdims=True)      # the gradient of the cross entropy
    slope[np.arange(len(y)), y.numpy()] -= 1
    gradients = run.backward({"scores": slope / len(y)})
    module.set_parameters({name: np.array(value) - 0.5 * np.array(gradients[name])   # plain gradient descent
                           for name, value in module.parameters().items()})
scores = module.predict({"images": test_images})["scores"]
print(f"accuracy {digits.accuracy(np.array(scores), test_labels):.3f}")
