# SPDX-License-Identifier: Apache-2.0
"""Calls of torch._foreach_*, one tensor after the other, as PyTorch's kernels for the CPU make them. Writes are so in Dynamo's graph:
where lists share memory, a tensor is computed from what was written to those before it, and a functional graph would read all old
values. Others are so in the trace, past autograd: if one of their results requires a gradient, all do."""

import torch

aten = torch.ops.aten
_PREFIX = "_foreach_"
_AS = {"maximum": "clamp_min", "minimum": "clamp_max"}  # which take numbers, too
# Their calls for a single tensor have another name or another result.
_UNLIKE = {"addcdiv", "addcmul", "max", "mm", "norm", "pow", "powsum"}


def _of(argument, i):
    return argument[i] if isinstance(argument, (list, tuple)) else argument


def each(method, tensors, others, options):
    """Calls a tensor's method by its name on each of the tensors. Lists among the arguments have one element for each."""
    for i, tensor in enumerate(tensors):
        getattr(tensor, method)(*[_of(other, i) for other in others], **{name: _of(options[name], i) for name in options})


def stand_ins() -> dict:
    """Functions by those that they stand for. Dynamo looks for what a closure holds in the function that is stood for; these have
    none."""
    found = {}
    for name in (name for name in dir(torch) if name.startswith(_PREFIX) and name.endswith("_")):
        of = name.removeprefix(_PREFIX).removesuffix("_")
        if of not in _UNLIKE:
            made = {}
            exec(f"def run(tensors, *others, **options):\n    each('{_AS.get(of, of)}_', tensors, others, options)", globals(), made)
            found[getattr(torch, name)] = made["run"]
    return found


def decompositions() -> dict:
    """Functions by the operators of calls that write to nothing."""
    def made(target):
        return lambda tensors, *others, **options: [target(tensor, *[_of(other, i) for other in others], **options)
                                                    for i, tensor in enumerate(tensors)]

    found = {}
    for name in (name for name in dir(torch) if name.startswith(_PREFIX) and not name.endswith("_")):
        of, packet = name.removeprefix(_PREFIX), getattr(aten, name)
        if of not in _UNLIKE:
            found |= {getattr(packet, overload): made(getattr(aten, _AS.get(of, of))) for overload in packet.overloads()
                      if "out" not in overload}
    return found
