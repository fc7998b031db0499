# SPDX-License-Identifier: Apache-2.0
"""The negative log likelihood loss, forward and backward."""

import torch

from caesura.aten.results import is_read, result
from caesura.aten.table import aten, raises
from caesura.aten.writer import DOMAIN, Tensor

_REDUCTIONS = ("none", "mean", "sum")


def _batched(w, x, target):
    """One row of scores as a batch of one."""
    if x.rank > 1:
        return x, target
    return w.reshape(x, (1, *x.shape)), w.reshape(target, (1,))


@raises(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(w, node, x, target, weight, reduction, ignore_index):
    dtype, shape = result(node, 0)
    scores, labels = _batched(w, x, target)
    inputs = [scores, labels] + ([weight] if weight is not None else [])
    loss_shape = labels.shape if reduction == 0 else ()
    loss = w.make("NegativeLogLikelihoodLoss", inputs, dtype, loss_shape, reduction=_REDUCTIONS[reduction],
                  ignore_index=ignore_index)
    total = None
    if is_read(node, 1):  # the sum of the weights that counted
        counts = w.make("Equal", [labels, w.constant(ignore_index, labels.dtype)], torch.bool, labels.shape)
        counts = w.cast(w.make("Not", [counts], torch.bool, labels.shape), dtype)
        if weight is not None:
            inside = w.make("Mul", [labels, w.cast(counts, labels.dtype)], labels.dtype, labels.shape)
            counts = w.make("Mul", [w.make("Gather", [weight, inside], dtype, labels.shape, axis=0), counts], dtype, labels.shape)
        total = w.make("ReduceSum", [counts], dtype, (), keepdims=0) if reduction != 0 else w.full(0, dtype, ())
    return w.reshape(loss, shape), total


@raises(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(w, node, dloss, x, target, weight, reduction, ignore_index, total):
    dtype, shape = result(node)
    scores, labels = _batched(w, x, target)
    inputs = [dloss, labels, weight, w.ints(scores.shape)]
    dx = w.make("NegativeLogLikelihoodLossGrad", inputs, dtype, scores.shape, domain=DOMAIN,
                reduction=_REDUCTIONS[reduction], ignore_index=ignore_index)
    return w.reshape(Tensor(dx.name, dtype, scores.shape), shape)
