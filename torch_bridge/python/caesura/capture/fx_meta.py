# SPDX-License-Identifier: Apache-2.0
"""Metadata of the nodes in a graph of ATen calls: the source line of each, and its dtype, shape and device."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from caesura.user_code import FRAME

aten = torch.ops.aten

# Other ways of looking at the same elements: PyTorch makes them from a program's results at no cost.
VIEWS = {
    aten.view.default, aten._unsafe_view.default, aten.t.default, aten.transpose.int, aten.permute.default,
    aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.expand.default,
    aten.slice.Tensor, aten.select.int, aten.alias.default, aten.detach.default, aten.view_as_real.default,
    aten.view_as_complex.default, aten.resolve_conj.default,
}


def describe(node: torch.fx.Node) -> str:
    """Returns the place in the user's code that a node comes from, "model.py:12 in forward", or its name."""
    frames = FRAME.findall(node.meta.get("stack_trace") or "")
    return "{}:{} in {}".format(*frames[-1]) if frames else node.name


def is_symbolic(node) -> bool:
    """True if the node is a size, not a tensor."""
    value = node.meta.get("val")
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def draws(node: torch.fx.Node) -> bool:
    """True if the call draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def storage_of(node):
    """The same for two nodes if their tensors share memory; None if the node has no memory."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    try:
        return StorageWeakRef(value.untyped_storage())
    except NotImplementedError:  # a sparse one has none
        return None


def devices_of(nodes) -> set:
    """The devices that the tensors of `nodes` lie on."""
    devices = set()
    for node in nodes:
        value = node.meta.get("val")
        for part in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(part, torch.Tensor):
                devices.add(part.device)
    return devices


def plain(dim):
    """A size as an int where it is one; a SymFloat likewise."""
    if isinstance(dim, torch.SymInt | torch.SymFloat) and dim.node.expr.is_number:
        return int(dim.node.expr) if isinstance(dim, torch.SymInt) else float(dim.node.expr)
    return dim


def is_static(shape) -> bool:
    return all(isinstance(dim, int) for dim in shape)


def result(node, index=None):
    """(dtype, shape) of a call's result, or of one of its results."""
    meta = node.meta["val"] if index is None else node.meta["val"][index]
    return meta.dtype, tuple(plain(d) for d in meta.shape)


def is_read(node, index: int) -> bool:
    """True if a node reads result `index` of the call's tuple."""
    return any(user.args[1] == index and user.users for user in node.users)
