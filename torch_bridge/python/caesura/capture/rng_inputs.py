# SPDX-License-Identifier: Apache-2.0
"""Random numbers as inputs of a program, for draws of a forward that depend only on their shape.

PyTorch draws them before each step, in the forward's order and from its own generator, as in eager.
"""

import functools

import sympy
import torch
from torch.fx import map_arg

from caesura import torch_kernels
from caesura.capture.compat import tree_leaves, tree_map_only

aten = torch.ops.aten
# Draws; those that take a tensor read only its shape, strides, dtype and device.
DRAWS = {
    aten.rand.generator, aten.randn.generator, aten.randint.generator, aten.randint.low_generator, aten.randperm.generator,
    aten.rand.default, aten.randn.default, aten.randint.default, aten.randint.low, aten.randperm.default, aten.normal.float_float,
    aten.rand_like.default, aten.randn_like.default, aten.randint_like.default, aten.randint_like.low_dtype,
    aten.uniform.default, aten.normal_functional.default, aten.bernoulli.p, aten.exponential.default, aten.cauchy.default,
    aten.geometric.default, aten.log_normal.default, aten.random.default, aten.random.to, getattr(aten.random, "from"),
}


@functools.cache
def drawer(target):
    """Our operator that draws as `target` does, faster, where there is one and the library for this PyTorch; else `target`."""
    name = {aten.bernoulli.p: "bernoulli", aten.uniform.default: "uniform"}.get(target)
    return getattr(torch.ops.caesura, name).default if name and not torch_kernels.misfit() else target


class Draw:
    """A call that draws: gives new numbers each time. value: the program's input."""

    def __init__(self, node: torch.fx.Node, value):
        self.value, self.name, self.target = value, value.name, node.target
        self.args, self.kwargs = map_arg((node.args, node.kwargs), lambda n: _plain(n.meta["val"]))
        self.is_fixed = not any(isinstance(leaf, torch.SymInt) or isinstance(leaf, _Like) and leaf.is_symbolic
                                for leaf in tree_leaves((self.args, self.kwargs)))

    @torch.no_grad()
    def __call__(self, sizes=None) -> torch.Tensor:
        """sizes: what symbols of the capture are now, where it is not fixed."""
        def real(leaf):
            return leaf.make(sizes) if isinstance(leaf, _Like) else _size(leaf, sizes)
        args, kwargs = tree_map_only((_Like, torch.SymInt), real, (self.args, self.kwargs))
        return drawer(self.target)(*args, **kwargs).contiguous()


class _Like:
    """A tensor of which only shape, strides, dtype and device count."""

    def __init__(self, value):
        self.size, self.stride, self.dtype, self.device = tuple(value.shape), tuple(value.stride()), value.dtype, value.device
        self.is_symbolic = any(isinstance(i, torch.SymInt) for i in self.size + self.stride)

    def make(self, sizes):
        size, stride = ([_size(i, sizes) for i in of] for of in (self.size, self.stride))
        return torch.empty_strided(size, stride, dtype=self.dtype, device=self.device)


def _plain(value):
    return _Like(value) if isinstance(value, torch.Tensor) else value


def _size(dim, sizes):
    return int(dim.node.expr.xreplace(sizes)) if isinstance(dim, torch.SymInt) else dim


def sizes_of(placeholders, values) -> dict:
    """The values of the symbols in the placeholders' sizes, for these inputs."""
    sizes = {}
    for node, value in zip(placeholders, values):
        meta = node.meta["val"]
        pairs = zip(meta.shape, value.shape) if isinstance(meta, torch.Tensor) else [(meta, value)]
        sizes.update((dim.node.expr, value) for dim, value in pairs if isinstance(dim, torch.SymInt))
    return {symbol: sympy.Integer(value) for symbol, value in sizes.items() if symbol.is_Symbol}
