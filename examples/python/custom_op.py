# SPDX-License-Identifier: Apache-2.0
"""An op of your own in a model that trains: clipped_op.c is compiled, registered, and runs with its gradient."""

import pathlib
import subprocess

import digits
import onnx

import caesura
from caesura import onnxruntime

here = pathlib.Path(__file__).resolve().parent
subprocess.run(["cc", "-std=c11", "-O2", "-shared", "-fPIC", f"-I{here.parent.parent}", here / "clipped_op.c", "-o",
                "libclipped.so"], check=True)
images, labels, test_images, test_labels = digits.load()
digits.export("digits.onnx")
model = onnx.load("digits.onnx")
model.opset_import.append(onnx.helper.make_opsetid("example", 1))
(relu,) = (node for node in model.graph.node if node.op_type == "Relu")
relu.op_type, relu.domain = "Clipped", "example"

options = onnxruntime.SessionOptions()
options.register_custom_ops_library("./libclipped.so")
session = caesura.TrainingSession(model, loss="cross_entropy", target="labels", optimizer=caesura.optim.AdamW(lr=3e-3),
                                  custom_ops=options.custom_ops)
for x, y in digits.batches(images, labels, epochs=10):
    loss = session.step({"images": x, "labels": y})
loss, outputs = session.evaluate({"images": test_images, "labels": test_labels})
print(f"accuracy {digits.accuracy(outputs[0], test_labels):.3f}")
