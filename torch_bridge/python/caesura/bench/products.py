# SPDX-License-Identifier: Apache-2.0
"""The matrix products inside of a training step, by watching PyTorch take one."""

import collections
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Product:
    """`count` products [batch, m, k] x [batch, k, n]; a convolution stands as the product it is equal to."""

    batch: int
    m: int
    k: int
    n: int
    count: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.k * self.n * self.count


class _Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name in ("mm", "addmm", "bmm", "baddbmm"):
            a, b = args[-2:]
            batch = a.shape[0] if a.dim() == 3 else 1
            self.counts[batch, a.shape[-2], a.shape[-1], b.shape[-1]] += 1
        elif name == "convolution":
            x, weight = args[:2]
            self._convolution(result, weight, [True, False, False])
        elif name == "convolution_backward":
            gradient, _, weight = args[:3]
            wanted = args[10]
            self._convolution(gradient, weight, [False, wanted[0], wanted[1]])
        return result

    def _convolution(self, y, weight, parts):
        places, taps = y.shape[0] * y.shape[2:].numel(), weight.shape[1:].numel()
        shapes = [(places, taps, weight.shape[0]), (places, weight.shape[0], taps), (taps, places, weight.shape[0])]
        for wanted, shape in zip(parts, shapes):
            self.counts[(1, *shape)] += bool(wanted)


def matrix_products(module: torch.nn.Module, workload) -> list:
    """The products of forward and backward on one batch, with attention decomposed. Parameters keep no gradient."""
    x, y = (torch.from_numpy(a) for a in workload.batches()[0])
    with sdpa_kernel(SDPBackend.MATH), _Watch() as watch:
        torch.nn.functional.cross_entropy(module(x), y).backward()
    module.zero_grad(set_to_none=True)
    return [Product(*shape, count) for shape, count in watch.counts.items() if count]
