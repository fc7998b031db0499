# SPDX-License-Identifier: Apache-2.0
"""onnxruntime-training: ORTModule around the PyTorch module, and on-device training of the ONNX export.

Both stopped at release 1.19.2, which takes the PyTorch and onnx of its time: they run in an environment of their own.
"""

import numpy as np
import onnx
import onnxruntime
from onnxruntime.training import artifacts, onnxblock
from onnxruntime.training import api


def capture(system, folder, job):
    """The training, evaluation and optimizer graphs, from the export that caesura also takes."""
    if job["bfloat16"]:
        raise NotImplementedError("bfloat16 is not for the CPU there")
    a = job["adamw"]
    model = onnx.load(folder / "without_sequences.onnx")
    for node in model.graph.node:
        if node.op_type == "LayerNormalization" and len(node.output) == 1:  # its gradient there reads all three
            node.output.extend([node.output[0] + ".mean", node.output[0] + ".deviation"])
    with np.load(folder / "weights.npz") as file:
        trained = [t.name for t in model.graph.initializer if t.name in file.files]
    rest = [t.name for t in model.graph.initializer if t.name not in trained]
    adamw = onnxblock.optim.AdamW(betas=(a["beta1"], a["beta2"]), eps=a["epsilon"], weight_decay=a["weight_decay"])
    artifacts.generate_artifacts(model, requires_grad=trained, frozen_params=rest,
                                 loss=artifacts.LossType.CrossEntropyLoss, optimizer=adamw, artifact_directory=folder)


def load(system, folder, job):
    return _on_device(folder, job) if system == "ort-on-device" else _ortmodule(folder, job)


def _on_device(folder, job):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = api.Module(str(folder / "training_model.onnx"), state, session_options=options)
    optimizer = api.Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(job["adamw"]["learning_rate"])
    module.train()

    def step(x, y):
        loss = module(x, y)
        optimizer.step()
        module.lazy_reset_grad()
        return loss

    return step, lambda x, y: (x, y)


def _ortmodule(folder, job):
    import torch
    from onnxruntime.training.ortmodule import ORTModule

    from ..workloads import find
    from .pytorch import make_batch, make_optimizer, make_step

    torch.set_num_threads(job["threads"])
    module = find(job["workload"]).module()
    with np.load(folder / "weights.npz") as file:  # an older PyTorch may draw other weights from the seed
        module.load_state_dict({name: torch.from_numpy(file[name]) for name in file.files}, strict=False)
    optimizer = make_optimizer(module.parameters(), job, fused=True)
    return make_step(ORTModule(module), optimizer, job), make_batch
