# SPDX-License-Identifier: Apache-2.0
"""Losses, forward and backward: of negative log likelihoods, of margins to several labels, and ctc_loss."""

import torch

import caesura.capture.ops.check  # noqa: F401  the operators
import caesura.capture.ops.ctc  # noqa: F401
from caesura.lowering.onnx_builder import DOMAIN, Scalar, Tensor
from caesura.lowering.registry import Refused, aten, register
from caesura.rewrites.fx_meta import is_read, result

_REDUCTIONS = ("none", "mean", "sum")


def _batched(w, x, target):
    """One row of scores as a batch of one."""
    if x.rank > 1:
        return x, target
    return w.reshape(x, (1, *x.shape)), w.reshape(target, (1,))


_IGNORED = -2**62  # no class


def with_ignored(w, labels, ignore_index):
    """(labels, ignore_index), where the index is a number: one that changes with a size is written into the labels."""
    if not isinstance(ignore_index, Scalar):
        return labels, ignore_index
    is_ignored = w.make("Equal", [labels, w.constant(ignore_index, labels.dtype)], torch.bool, labels.shape)
    return w.make("Where", [is_ignored, w.constant(_IGNORED, labels.dtype), labels], labels.dtype, labels.shape), _IGNORED


@register(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(w, node, x, target, weight, reduction, ignore_index):
    dtype, shape = result(node, 0)
    scores, labels = _batched(w, x, target)
    labels, ignore_index = with_ignored(w, labels, ignore_index)
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


@register(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(w, node, dloss, x, target, weight, reduction, ignore_index, total):
    dtype, shape = result(node)
    scores, labels = _batched(w, x, target)
    labels, ignore_index = with_ignored(w, labels, ignore_index)
    if x.rank == 1 and reduction == 0:
        dloss = w.reshape(dloss, (1,))
    inputs = [dloss, labels, weight, w.ints(scores.shape)]
    dx = w.make("NegativeLogLikelihoodLossGrad", inputs, dtype, scores.shape, domain=DOMAIN,
                reduction=_REDUCTIONS[reduction], ignore_index=ignore_index)
    return w.reshape(Tensor(dx.name, dtype, scores.shape), shape)


@register(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(w, node, dloss, x, target, reduction, beta):
    dtype, shape = result(node)
    distance = w.make("Sub", [w.cast(x, dtype), w.cast(target, dtype)], dtype, shape)
    far = w.make("Abs", [distance], dtype, shape)
    far = w.make("GreaterOrEqual", [far, w.constant(beta, dtype)], torch.bool, shape)
    near = distance if beta == 0 else w.make("Div", [distance, w.constant(beta, dtype)], dtype, shape)
    dx = w.make("Where", [far, w.make("Sign", [distance], dtype, shape), near], dtype, shape)
    if reduction == 1:
        dloss = w.make("Div", [dloss, w.cast(Tensor(w.op("Size", [x]), torch.int64, ()), dtype)], dtype, dloss.shape)
    return w.make("Mul", [dx, dloss], dtype, shape)


# --- labels by margins ------------------------------------------------------------------------------------------

def _rows(w, *tensors):
    """Vectors as batches of one."""
    return [t if t.rank > 1 else w.reshape(t, (1, *(t.shape or (1,)))) for t in tensors]


def _labels(w, target):
    """(whether each label counts, the labels with 0 for others). A row of labels ends at its first negative one."""
    shape = target.shape
    ends = w.cast(w.make("Less", [target, w.constant(0, target.dtype)], torch.bool, shape), torch.int64)
    ended = w.make("CumSum", [ends, w.constant(1)], torch.int64, shape)
    counts = w.make("Equal", [ended, w.constant(0)], torch.bool, shape)
    return counts, w.make("Where", [counts, target, w.constant(0, target.dtype)], target.dtype, shape)


def _margins(w, x, target, is_target):
    """1 - (x of a label - x of another class), [rows, labels, classes]; and those that count and are positive."""
    counts, labels = _labels(w, target)
    scores = w.make("GatherElements", [x, labels], x.dtype, x.shape, axis=1)
    shape = (*x.shape, x.shape[1])
    column, row = (*x.shape, 1), (x.shape[0], 1, x.shape[1])
    margins = w.make("Sub", [w.constant(1, x.dtype), w.reshape(scores, column)], x.dtype, column)
    margins = w.make("Add", [margins, w.reshape(x, row)], x.dtype, shape)
    others = w.make("Equal", [w.reshape(is_target, row), w.constant(0, x.dtype)], torch.bool, row)
    positive = w.make("Greater", [margins, w.constant(0, x.dtype)], torch.bool, shape)  # false of NaN
    counting = w.make("And", [w.reshape(counts, column), others], torch.bool, shape)
    return margins, w.make("And", [counting, positive], torch.bool, shape), labels


@register(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss(w, node, x, target, reduction):
    dtype, _ = result(node, 0)
    given, shape = target.shape, () if reduction or x.rank < 2 else x.shape[:1]  # PyTorch's own trace has [1] of a row
    x, target = _rows(w, x, target)
    if 0 in x.shape:
        raise Refused("margins of nothing")
    counts, labels = _labels(w, target)
    nothing = w.make("Expand", [w.constant(0, dtype), w.ints(x.shape)], dtype, x.shape)
    is_target = w.make("ScatterElements", [nothing, labels, w.cast(counts, dtype)], dtype, x.shape, axis=1, reduction="max")
    margins, positive, _ = _margins(w, x, target, is_target)
    margins = w.make("Where", [positive, margins, w.constant(0, dtype)], dtype, margins.shape)
    loss = w.make("ReduceSum", [margins, w.constant([1, 2])], dtype, x.shape[:1], keepdims=0)
    loss = w.make("Div", [loss, w.cast(w.scalar(x.shape[1]), dtype)], dtype, loss.shape)
    if reduction:
        loss = w.make("ReduceMean" if reduction == 1 else "ReduceSum", [loss], dtype, (), keepdims=0)
    return w.reshape(loss, shape), w.reshape(is_target, given)


@register(aten.multilabel_margin_loss_backward.default)
def multilabel_margin_loss_backward(w, node, dloss, x, target, reduction, is_target):
    dtype, shape = result(node)
    x, target, is_target = _rows(w, x, target, is_target)
    margins, positive, labels = _margins(w, x, target, is_target)
    each = w.cast(positive, dtype)
    dx = w.make("ReduceSum", [each, w.constant([1])], dtype, x.shape, keepdims=0)
    lost = w.make("ReduceSum", [each, w.constant([2])], dtype, x.shape, keepdims=0)
    dx = w.make("ScatterElements", [dx, labels, w.make("Neg", [lost], dtype, x.shape)], dtype, x.shape, axis=1, reduction="add")
    count = w.scalar(x.shape[1])
    if reduction == 1:
        count = w.make("Mul", [count, w.scalar(x.shape[0])], torch.int64, ())
    scale = w.make("Div", [dloss, w.cast(count, dtype)], dtype, dloss.shape)
    scale = w.reshape(scale, (x.shape[0], 1)) if scale.rank else scale
    return w.reshape(w.make("Mul", [dx, scale], dtype, x.shape), shape)


# --- operators of ours ------------------------------------------------------------------------------------------

@register(torch.ops.caesura.ctc_loss.default)
def ctc_loss(w, node, log_probs, targets, input_lengths, target_lengths, blank, zero_infinity):
    inputs = [log_probs, *(w.cast(t, torch.int64) for t in (targets, input_lengths, target_lengths))]
    names = w.op("CtcLoss", inputs, outputs=2, domain=DOMAIN, blank=blank, zero_infinity=int(zero_infinity))
    return tuple(Tensor(name, *result(node, i)) for i, name in enumerate(names))


@register(torch.ops.caesura.check.default)
def check(w, node, x, holds, message):
    return w.make("Check", [x, holds], *result(node), domain=DOMAIN, message=message)
