# SPDX-License-Identifier: Apache-2.0
"""PyTorch, eager and compiled."""

import contextlib

import torch
from torch.nn.functional import cross_entropy

from ..workloads import find


def make_optimizer(parameters, job, **options):
    a = job["adamw"]
    return torch.optim.AdamW(parameters, lr=a["learning_rate"], betas=(a["beta1"], a["beta2"]), eps=a["epsilon"],
                             weight_decay=a["weight_decay"], **options)


def make_batch(x, y):
    return torch.from_numpy(x), torch.from_numpy(y)


def make_step(model, optimizer, job, compile_loss=False, compile_update=False):
    def forward(x, y):
        with torch.autocast("cpu", torch.bfloat16) if job["bfloat16"] else contextlib.nullcontext():
            return cross_entropy(model(x).float(), y)

    forward = torch.compile(forward) if compile_loss else forward
    update = torch.compile(optimizer.step) if compile_update else optimizer.step

    def step(x, y):
        loss = forward(x, y)
        loss.backward()
        update()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def load(system, folder, job):
    torch.set_num_threads(job["threads"])
    model = find(job["workload"]).module()
    options = {"eager-foreach": {"foreach": True}, "eager-fused": {"fused": True}, "compile": {"fused": True}}
    optimizer = make_optimizer(model.parameters(), job, **options.get(system, {}))
    compiled = system in ("compile", "compile-step")
    return make_step(model, optimizer, job, compiled, system == "compile-step"), make_batch
