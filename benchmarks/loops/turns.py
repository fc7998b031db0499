# SPDX-License-Identifier: Apache-2.0
"""The side of benchmarks/loops.py that lives in a loop's process: routes, times of steps, and turns between processes."""

import json
import os
import random
import resource
import sys
import time

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import caesura

LOSSES = 10  # steps whose losses are compared


class Loop:
    """A loop's route ("eager", "compile", "autotune", "wrap", "step" or "loop", as loops.py has them) and its turns.

    A loop calls done() once per update, or leaves that to the optimizer's hook. Times are CPU times of the process, in seconds. The
    process waits for its turn within done(), and ends there.
    """

    def __init__(self, route, answers):
        self.route, self.answers = route, answers
        self.times, self.losses = [], []
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.began = time.process_time()

    def module(self, module):
        """The module that the loop calls."""
        if self.route in ("compile", "autotune"):
            return torch.compile(module, mode="max-autotune" if self.route == "autotune" else "default")
        return caesura.wrap(module) if self.route == "wrap" else module

    def optimizer(self, optimizer):
        """The optimizer that the loop steps."""
        return caesura.fuse(optimizer) if self.route == "wrap" else optimizer

    def step(self, module, loss_fn, optimizer, **options):
        """compile_step() with eager's masks."""
        return caesura.compile_step(module, loss_fn, optimizer, masks="pytorch", **options)

    def hook(self):
        """Has each optimizer's step call done(), and the losses come from backward(): for loops that a library owns."""
        backward = torch.autograd.backward

        def recorded(tensors, *args, **kwargs):
            if isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
                self.record(tensors)
            return backward(tensors, *args, **kwargs)

        if self.route != "loop":
            torch.autograd.backward = recorded
        register_optimizer_step_post_hook(lambda *_: self.done())

    def watch(self, owner):
        """Has the losses come from owner.training_step(), for loops that caesura.integrations trains."""
        train = owner.training_step

        def recorded(*args, **kwargs):
            out = train(*args, **kwargs)
            self.record(out["loss"] if isinstance(out, dict) else out)
            return out

        owner.training_step = recorded

    def record(self, loss):
        """Takes a loss that is compared with those of other routes."""
        if len(self.losses) < LOSSES:
            self.losses.append(loss.item())

    def done(self, loss=None):
        """Ends a step."""
        self.times.append(time.process_time() - self.began)
        if loss is not None:
            self.record(loss)
        if len(self.times) >= self.steps:
            self.wait()
        self.began = time.process_time()

    def wait(self):
        """Tells of the turn that ended; returns when the next one begins."""
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.peak) // 1024
        print(json.dumps({"times": self.times, "losses": self.losses, "grown": grown}), file=self.answers, flush=True)
        self.times = []
        asked = sys.stdin.readline()
        if not asked:
            os._exit(0)
        self.steps = int(asked)


def main():
    """`turns.py NAME ROUTE`: runs benchmarks/loops/NAME.py, and answers on the file that standard output was."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if torch.version.cuda is None:  # torchvision's operators need a PyTorch with CUDA, and its Python asks for two of them
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    run = __import__(sys.argv[1]).run  # imports what the library needs, before the first time is taken
    loop = Loop(sys.argv[2], answers)
    loop.steps = int(sys.stdin.readline())
    run(loop)
    raise SystemExit(f"benchmarks/loops: {sys.argv[1]} ended before its last turn")


if __name__ == "__main__":
    main()
