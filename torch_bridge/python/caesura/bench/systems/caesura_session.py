# SPDX-License-Identifier: Apache-2.0
"""caesura: the module's ONNX export in a TrainingSession."""

import caesura


def capture(system, folder, job):
    """Writes the forward pass, as torch.onnx.export leaves it without optimisation."""
    from .. import export

    export.write_onnx(job, folder)


def load(system, folder, job):
    model = folder / ("without_sequences.onnx" if job["bfloat16"] else "model.onnx")
    session = caesura.TrainingSession(str(model), target="target", class_axis=-1, optimizer="adamw",
                                      threads=job["threads"], **job["adamw"])
    return session.step, lambda x, y: ({"x": x, "target": y},)
