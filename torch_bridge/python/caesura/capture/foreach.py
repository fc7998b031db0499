# SPDX-License-Identifier: Apache-2.0
"""Calls of torch._foreach_*, one tensor after the other, as PyTorch's kernels for the CPU make them: where lists share memory, a
tensor is computed from what was written to those before it. A functional graph would read all old values."""

import torch

_PREFIX = "_foreach_"
_AS = {"maximum": "clamp_min", "minimum": "clamp_max"}  # which take numbers, too
# Their calls for a single tensor have another name or another result.
_UNLIKE = {"addcdiv", "addcmul", "max", "mm", "norm", "pow", "powsum"}


def each(method, tensors, others, options):
    """Calls a tensor's method by its name on each of the tensors. Lists among the arguments have one element for each."""
    def of(argument, i):
        return argument[i] if isinstance(argument, (list, tuple)) else argument

    return [getattr(tensor, method)(*[of(other, i) for other in others], **{name: of(options[name], i) for name in options})
            for i, tensor in enumerate(tensors)]


def stand_ins() -> dict:
    """Functions by those that they stand for. Dynamo looks for what a closure holds in the function that is stood for; these have
    none."""
    found = {}
    for name in (name for name in dir(torch) if name.startswith(_PREFIX)):
        of, end = name.removeprefix(_PREFIX).removesuffix("_"), "_" if name.endswith("_") else ""
        if of not in _UNLIKE:
            made = {}
            exec(f"def run(tensors, *others, **options):\n"
                 f"    made = each('{_AS.get(of, of)}{end}', tensors, others, options)\n"
                 f"    return {'None' if end else 'tuple(made)'}", globals(), made)
            found[getattr(torch, name)] = made["run"]
    return found
