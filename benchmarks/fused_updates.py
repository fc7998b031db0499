#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures an optimizer's step: caesura.fuse beside PyTorch's own, as it is by default, with foreach and with fused. And the
clipping before it: caesura.clip_grad_norm_ beside torch.nn.utils.clip_grad_norm_.

    OMP_NUM_THREADS=1 python benchmarks/fused_updates.py [--rounds 15] [--only REGEX]

Each row has an optimizer and parameters of one kind: "tiny", an MLP of 4 tensors; "many", 400 tensors of 64 to 4,096 elements;
"large", 24 tensors of a million. The variants take turns. It prints the median CPU time of a step, with the quartiles of ours over
the best of PyTorch's in the same round.
"""

import argparse
import functools
import re
import statistics
import time

import torch

import caesura

SETS = {"tiny": ([(64, 16), (64,), (4, 64), (4,)], 400), "many": ([(64,), (64, 64)] * 200, 12), "large": ([(1024, 1024)] * 24, 2)}
KINDS = {"AdamW": (torch.optim.AdamW, {"lr": 1e-4}), "SGD, momentum": (torch.optim.SGD, {"lr": 1e-4, "momentum": 0.9}),
         "Adagrad": (torch.optim.Adagrad, {"lr": 1e-4}), "RMSprop": (torch.optim.RMSprop, {"lr": 1e-4})}
VARIANTS = {"default": {}, "foreach": {"foreach": True}, "fused": {"fused": True}, "ours": {}}
CLIPPING = {"default": torch.nn.utils.clip_grad_norm_, "ours": caesura.clip_grad_norm_}


def parameters(shapes):
    given = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    for p in given:
        p.grad = torch.randn_like(p)
    return given


def steps_of(kind, options, shapes):
    """Name to an optimizer's step; without those that the class does not have."""
    made = {}
    for name, more in VARIANTS.items():
        try:
            made[name] = kind(parameters(shapes), **options, **more)
        except (TypeError, RuntimeError):
            continue
    caesura.fuse(made["ours"])
    return {name: optimizer.step for name, optimizer in made.items()}


def clipping_of(max_norm, shapes):
    """Name to a call that clips gradients."""
    return {name: functools.partial(clip, parameters(shapes), max_norm) for name, clip in CLIPPING.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default=".")
    given = parser.parse_args()
    print(f"microseconds of CPU time a step, medians of {given.rounds} rounds, {torch.get_num_threads()} thread(s)")
    kinds = {title: functools.partial(steps_of, *kind) for title, kind in KINDS.items()}
    kinds |= {"clip": functools.partial(clipping_of, 1e-3), "norm alone": functools.partial(clipping_of, 1e9)}
    for title, variants in kinds.items():
        for label, (shapes, steps) in SETS.items():
            if not re.search(given.only, f"{title} {label}"):
                continue
            made = variants(shapes)
            times = {name: [] for name in made}
            for round_ in range(-2, given.rounds):
                for name, call in made.items():
                    began = time.process_time()
                    for _ in range(steps):
                        call()
                    if round_ >= 0:
                        times[name].append((time.process_time() - began) / steps * 1e6)
            best = min((name for name in made if name != "ours"), key=lambda name: statistics.median(times[name]))
            ratios = [ours / theirs for ours, theirs in zip(times["ours"], times[best])]
            low, middle, high = statistics.quantiles(ratios, n=4)
            row = "  ".join(f"{name} {statistics.median(values):8.1f}" for name, values in times.items())
            print(f"{title + ', ' + label:24} {row}  ours / {best}: {middle:.2f} [{low:.2f}, {high:.2f}]", flush=True)


if __name__ == "__main__":
    main()
