# SPDX-License-Identifier: Apache-2.0
"""A workload's files: initial weights, batches, matrix products, and, where asked, its ONNX model."""

import dataclasses
import json
import pathlib

import numpy as np
import onnxscript.optimizer
import torch

from .products import matrix_products
from .workloads import BATCHES, Workload, find

ADAMW = {"learning_rate": 3e-4, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01}


def prepare(workload: Workload, folder: pathlib.Path, threads: int) -> dict:
    """Writes job.json, weights.npz, batches.npz; returns the job."""
    module = workload.module()
    products = matrix_products(module, workload)
    job = {"workload": workload.name, "threads": threads, "batches": BATCHES, "adamw": ADAMW,
           "bfloat16": workload.bfloat16, "jax_model": workload.jax_model, "heads": workload.heads,
           "parameters": sum(p.numel() for p in module.parameters()),
           "products": [dataclasses.asdict(p) for p in products],
           "matrix_flops": sum(p.flops for p in products)}
    batches = workload.batches()
    np.savez(folder / "batches.npz", **{f"x{i}": x for i, (x, _) in enumerate(batches)},
             **{f"y{i}": y for i, (_, y) in enumerate(batches)})
    np.savez(folder / "weights.npz", **{name: p.detach().numpy() for name, p in workload.module().named_parameters()})
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    return job


def write_onnx(job: dict, folder: pathlib.Path) -> None:
    """The module, in training mode and float32, from input "x" to output "scores".

    model.onnx is what torch.onnx.export makes of it. It is not optimised: batch normalization would be folded into
    convolutions. In without_sequences.onnx the sequences that split() leaves are Splits, for whom has no gradient of
    them.
    """
    x = torch.from_numpy(find(job["workload"]).batches()[0][0])
    program = torch.onnx.export(find(job["workload"]).module(), (x,), dynamo=True, optimize=False, verbose=False,
                                input_names=["x"], output_names=["scores"])
    program.save(str(folder / "model.onnx"))
    sequences = ("SplitToSequence", "SequenceAt")
    onnxscript.optimizer.fold_constants(program.model, onnx_shape_inference=False,
                                        should_fold=lambda node: None if node.op_type in sequences else False)
    onnxscript.optimizer.remove_unused_nodes(program.model)
    program.save(str(folder / "without_sequences.onnx"))
