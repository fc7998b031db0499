# SPDX-License-Identifier: Apache-2.0
"""An ONNX model runs with onnxruntime's interface; outputs are written into memory of your own."""

import digits
import numpy as np

from caesura import onnxruntime

_, _, test_images, test_labels = digits.load()
digits.export("digits.onnx")
session = onnxruntime.InferenceSession("digits.onnx")
scores, = session.run(None, {"images": test_images.numpy()})

binding = session.io_binding()
binding.bind_cpu_input("images", test_images.numpy())
own = onnxruntime.OrtValue.ortvalue_from_numpy(np.empty_like(scores))
binding.bind_ortvalue_output("scores", own)
session.run_with_iobinding(binding)
assert (own.numpy() == scores).all()
print(f"accuracy {digits.accuracy(own.numpy(), test_labels):.3f} (untrained)")
