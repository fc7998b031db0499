# SPDX-License-Identifier: Apache-2.0
"""caesura, caesura-early: the module's ONNX export in a TrainingSession, by its mode of commit."""

import caesura


def capture(system, folder, job):
    """Writes the forward pass, as torch.onnx.export leaves it without optimisation."""
    from .. import export

    export.write_onnx(job, folder)


def load(system, folder, job):
    a = job["adamw"]
    optimizer = caesura.optim.AdamW(a["learning_rate"], (a["beta1"], a["beta2"]), a["epsilon"], a["weight_decay"])
    session = caesura.TrainingSession(str(folder / "model.onnx"), target="target", class_axis=-1, optimizer=optimizer,
                                      commit="eager-consume" if system == "caesura-early" else "late",
                                      threads=job["threads"], precision="bf16" if job["bfloat16"] else "fp32")
    return session.step, lambda x, y: ({"x": x, "target": y},)
