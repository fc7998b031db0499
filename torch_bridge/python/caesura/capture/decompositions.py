# SPDX-License-Identifier: Apache-2.0
"""Selects PyTorch's decompositions of ATen calls, and replaces those that give other results than the kernels."""

import contextlib
import functools

import torch

from caesura.capture import foreach
from caesura.capture.compat import (DispatchKey, core_aten_decompositions, global_decomposition_table, guard_or_false,
                                    registrations, with_kernel)
from caesura.capture.patches import Shared

aten = torch.ops.aten
# PyTorch 2.13 counts a row's classes with other rows' targets here. A trace runs this decomposition whatever the table says,
# because it is a kernel of the operator too.
_WRONG = torch.ops.aten.multilabel_margin_loss_forward.default


def decompositions(kept) -> dict:
    """PyTorch's own decompositions of the calls that are not `kept` as they are."""
    return {target: function for target, function in _table(*_registered()).items() if target not in kept}


@functools.lru_cache(maxsize=1)
def _table(operators, registered) -> dict:  # PyTorch takes 80 ms for it, in each call
    return {target: function for target, function in core_aten_decompositions().items()
            if target is not _WRONG and target.namespace != "caesura"} | {
        aten._weight_norm_interface.default: _weight_norm,
        aten._weight_norm_interface_backward.default: _weight_norm_backward, aten.multi_margin_loss.default: _multi_margin_loss,
        aten.bernoulli.default: _bernoulli, aten.softshrink.default: _softshrink} | foreach.decompositions()


def _registered() -> tuple:
    """The operators that PyTorch makes the table from; those of libraries come and go. Each capture makes one of ours,
    whose kernel is its decomposition."""
    operators = set()
    for name in registrations("CompositeImplicitAutograd"):
        namespace, name = name.split("::")
        if namespace != "caesura":
            operators.add((name, None if namespace == "aten" else getattr(getattr(torch.ops, namespace), name.split(".")[0])))
    return frozenset(operators), len(global_decomposition_table["post_autograd"])


def _bernoulli(p, *, generator=None):
    """PyTorch's decomposition draws float32 numbers, also where its kernel draws doubles."""
    wide = torch.float64 if p.dtype == torch.float64 else torch.float32
    return (torch.rand(p.size(), dtype=wide, device=p.device) < p).to(p.dtype)


def _weight_norm(v, g, dim=0):
    """PyTorch's decomposition takes one norm of all elements of a vector, its kernel a norm of each element."""
    axes = [i for i in range(v.dim()) if i != dim]
    precise = torch.float if g.dtype == torch.bfloat16 else None
    norm = v.norm(2, axes, keepdim=True, dtype=precise) if axes else v.abs().to(precise or v.dtype)
    return v * (g / norm.to(g.dtype)), norm


def _weight_norm_backward(dw, v, g, norm, dim):
    """The gradients of w = v g / |v|, for which PyTorch has no decomposition: dv = g / |v| (dw - v <dw, v> / |v|^2), dg = <dw, v> / |v|."""
    axes = [i for i in range(v.dim()) if i != dim]
    along = (dw * v).sum(axes, keepdim=True) if axes else dw * v
    norm = norm.to(v.dtype)
    return g / norm * (dw - v * (along / (norm * norm))), along / norm


def _multi_margin_loss(x, target, p=1, margin=1, weight=None, reduction=1):
    """PyTorch's decomposition lets a gradient pass at the margin, and hands NaN on; its kernel does neither."""
    global_decomposition_table["post_autograd"][aten.multi_margin_loss.default](x, target, p, margin, weight)  # for its checks
    rows, labels = torch.atleast_2d(x), target.reshape(-1, 1)
    distance = margin - rows.gather(1, labels) + rows
    counts = (distance > 0) & (labels != torch.arange(rows.shape[1], device=x.device))
    each = torch.where(counts, distance, 0)
    each = each if p == 1 else each * each
    each = each if weight is None else each * torch.atleast_1d(weight)[labels]
    if reduction == 0:
        return each.mean(1).reshape(target.shape)
    return each.mean() if reduction == 1 else each.sum() / rows.shape[1]


def _softshrink(x, lambd=0.5):
    """PyTorch's decomposition stops the gradient of NaN; its kernel hands it on, as that of hardshrink does."""
    global_decomposition_table["post_autograd"][aten.softshrink.default](x, lambd)  # for its checks
    return torch.where(x.abs() <= lambd, (x * 0).detach(), x - x.sign() * lambd)


def _dropout(x, p, train):
    """PyTorch's decomposition draws with p = 1, and copies x where nothing is dropped."""
    if not train or p == 0 or guard_or_false(x.numel() == 0):
        return x
    return x * torch.zeros((), dtype=x.dtype, device=x.device) if p == 1 else aten.native_dropout(x, p, train)[0]


def _of_dense(target, keeps):
    """The kernel of a call of `target` with x: that call with an x whose axes lie in order. PyTorch's kernels for the CPU lay their
    results so, its decompositions as x. keeps: whether the kernel keeps channels_last."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d} if keeps else {}

    def run(x, *arguments):
        like = torch.empty_like(x)
        kept = like.is_contiguous() or (x.dim() in formats and like.is_contiguous(memory_format=formats[x.dim()]))
        return target(x if kept else x.contiguous(), *arguments)

    return run


_IN_ORDER = {
    aten.batch_norm.default: _of_dense(lambda *given: aten._batch_norm_impl_index.default(*given)[0], True),
    aten.log_sigmoid.default: _of_dense(lambda x: aten.log_sigmoid_forward.default(x)[0], False),
    aten.rrelu.default: _of_dense(lambda x, *given: aten.rrelu_with_noise.default(x, torch.empty_like(x), *given), False),
}


@contextlib.contextmanager
def _corrected():
    with with_kernel(_WRONG, DispatchKey.Autograd, None), \
            with_kernel(aten.multi_margin_loss.default, DispatchKey.Autograd, _multi_margin_loss), \
            with_kernel(aten.softshrink.default, DispatchKey.Autograd, _softshrink), \
            with_kernel(aten.dropout.default, DispatchKey.CompositeImplicitAutograd, _dropout), \
            with_kernel(aten.dropout.default, DispatchKey.Autograd, _dropout), contextlib.ExitStack() as kernels:
        for target, kernel in _IN_ORDER.items():
            for key in (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd):
                kernels.enter_context(with_kernel(target, key, kernel))
        yield


corrected = Shared(_corrected)  # traces within it have eager's results where a decomposition is a kernel of the operator too
