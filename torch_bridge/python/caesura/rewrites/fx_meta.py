# SPDX-License-Identifier: Apache-2.0
"""Metadata of the nodes in a graph of ATen calls: the source line of each, and its dtype, shape and device."""

import operator

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from caesura.user_code import FRAME, calling_line, is_users

aten = torch.ops.aten

# Other ways of looking at the elements of the first argument: PyTorch makes them from a program's results at no cost.
_VIEWS = {
    aten.view.default, aten._unsafe_view.default, aten.t.default, aten.transpose.int, aten.permute.default,
    aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.expand.default,
    aten.slice.Tensor, aten.select.int, aten.alias.default, aten.detach.default, aten.view_as_real.default,
    aten.view_as_complex.default, aten.resolve_conj.default, aten.diagonal.default, aten.unfold.default, aten.as_strided.default,
    aten.view.dtype,
}
# The same as a list, whose elements further calls take.
_PARTS = {aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, aten.unsafe_split.Tensor,
          aten.unsafe_split_with_sizes.default}


def describe(node: torch.fx.Node) -> str:
    """Returns the place in the user's code that a node comes from, "model.py:12 in forward"; the line that calls the module where
    the node comes from code of PyTorch's or ours; the node's name if it does not tell."""
    frames = FRAME.findall(node.meta.get("stack_trace") or "")
    users = [frame for frame in frames if is_users(frame[0])]
    return "{}:{} in {}".format(*(users[-1] if users else calling_line())) if frames else node.name


def makes_view(node: torch.fx.Node) -> bool:
    """True if the call's result is memory of its first argument: a view, several views in a list, or one of such a list."""
    if node.target is operator.getitem:
        return node.args[0].target in _PARTS
    return node.target in _VIEWS or node.target in _PARTS


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
