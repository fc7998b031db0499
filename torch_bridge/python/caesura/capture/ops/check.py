# SPDX-License-Identifier: Apache-2.0
"""Checks in captured graphs, for functions of PyTorch that read values only to raise an error.

The program makes the check at the same place as eager, and fails with the same error.
"""

import math

import torch

_library = torch.library.Library("caesura", "FRAGMENT")
_library.define("check(Tensor x, Tensor holds, str message) -> Tensor")


@torch.library.register_fake("caesura::check", lib=_library)
def _(x, holds, message):
    return torch.empty_like(x)


@torch.library.impl("caesura::check", "CPU", lib=_library)
def _(x, holds, message):
    if not holds.all():
        raise ValueError(message)
    return x.clone()


torch.library.register_autograd("caesura::check", lambda ctx, dy: (dy, None, None), lib=_library)


def gaussian_nll_loss(input, target, var, full=False, eps=1e-6, reduction="mean"):
    """Computes the same as torch.nn.functional.gaussian_nll_loss."""
    if isinstance(var, float):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        var = var * torch.ones_like(input)
    else:
        var = torch.ops.caesura.check(var, ~(var < 0), "var has negative entry/entries")
    if var.size() != input.size():
        if input.size()[:-1] == var.size():
            var = var.unsqueeze(-1)
        elif input.dim() != var.dim() or sum(b for a, b in zip(input.size(), var.size()) if a != b) != 1:
            raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(reduction + " is not valid")
    var = torch.where(var < eps, var - var.detach() + eps, var)  # past the gradients
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss
