# SPDX-License-Identifier: Apache-2.0
"""caesura around the PyTorch module itself: wrapped, or the whole step compiled."""

import torch
from torch.nn.functional import cross_entropy

import caesura

from ..workloads import find
from .pytorch import make_batch, make_optimizer, make_step


def load(system, folder, job):
    torch.set_num_threads(job["threads"])
    model = find(job["workload"]).module()
    if system == "caesura-wrap":
        return make_step(caesura.wrap(model), make_optimizer(model.parameters(), job, fused=True), job), make_batch
    step = caesura.compile_step(model, cross_entropy, make_optimizer(model.parameters(), job), threads=job["threads"],
                                precision="bf16" if job["bfloat16"] else "fp32")
    return step, make_batch
