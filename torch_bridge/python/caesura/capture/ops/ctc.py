# SPDX-License-Identifier: Apache-2.0
"""ctc_loss in captured graphs.

PyTorch's call leaves its backward a tensor whose size is a matter of the target lengths' values, which no graph holds. Here it
is an operator, caesura::ctc_loss, that gives the losses of a batch together with their derivatives (Graves et al., 2006,
equation 16): both of known sizes. lowering/ops/loss.py says it in our ops.
"""

import math

import torch

aten = torch.ops.aten

_library = torch.library.Library("caesura", "FRAGMENT")
_library.define("ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, "
                "bool zero_infinity) -> (Tensor losses, Tensor slopes)")


@torch.library.register_fake("caesura::ctc_loss", lib=_library)
def _(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity):
    return log_probs.new_empty(log_probs.shape[1]), torch.empty_like(log_probs, memory_format=torch.contiguous_format)


@torch.library.impl("caesura::ctc_loss", "CPU", lib=_library)
def _(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity):
    lengths = input_lengths.long(), target_lengths.long()
    losses, log_alpha = aten._ctc_loss.Tensor(log_probs, targets, *lengths, blank, zero_infinity)
    slopes = aten._ctc_loss_backward.Tensor(torch.ones_like(losses), log_probs, targets, *lengths, losses, log_alpha, blank,
                                            zero_infinity)
    return losses, slopes.contiguous()


def _backward(ctx, dlosses, _):
    (slopes,) = ctx.saved_tensors
    if torch.is_grad_enabled():
        raise RuntimeError("ctc_loss has no second derivative")
    return slopes * dlosses[:, None], None, None, None, None, None


def _setup(ctx, inputs, output):
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


torch.library.register_autograd("caesura::ctc_loss", _backward, setup_context=_setup, lib=_library)


def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    """Computes the same as torch.nn.functional.ctc_loss."""
    if torch.is_autocast_enabled("cpu"):
        log_probs = log_probs.float()
    batch = log_probs if log_probs.dim() == 3 else log_probs[:, None]
    input_lengths, target_lengths = (torch.as_tensor(lengths).reshape(-1) for lengths in (input_lengths, target_lengths))
    losses, _ = torch.ops.caesura.ctc_loss(batch, targets, input_lengths, target_lengths, blank, zero_infinity)
    if zero_infinity:
        losses = torch.where(losses == math.inf, 0, losses)
    if reduction == "mean":
        return (losses / target_lengths.clamp_min(1)).mean()
    if reduction == "sum":
        return losses.sum()
    return losses if log_probs.dim() == 3 else losses[0]
