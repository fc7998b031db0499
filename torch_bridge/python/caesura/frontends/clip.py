# SPDX-License-Identifier: Apache-2.0
"""caesura.clip_grad_norm_: the norm of gradients, and their clipping, as one call."""

import types
from collections.abc import Iterable
from typing import Any, Optional, Union

import torch

from caesura import _core
from caesura.capture.compat import dispatch_modes, function_modes, increment_version


def clip_grad_norm_(parameters: Union[torch.Tensor, Iterable[torch.Tensor]], max_norm: float, norm_type: float = 2.0,
                    error_if_nonfinite: bool = False, foreach: Optional[bool] = None) -> torch.Tensor:
    """Clips gradients as torch.nn.utils.clip_grad_norm_ does, in one call of caesura's. It goes with caesura.fuse().

    Gradients that need no clipping are only read. PyTorch's own function does the work where `norm_type` is not 2, or where the
    gradients are not all dense tensors of float32, or all of float64, on the CPU.

    Args:
        parameters: parameters, or one, whose .grad is clipped in place. Those without one count nothing.
        max_norm: the largest norm that all gradients together may have.
        norm_type: the order of the norm; "inf" for the largest element.
        error_if_nonfinite: whether a norm that is NaN or infinite is an error.
        foreach: as PyTorch takes it where its own function does the work.

    Returns:
        The norm before clipping, a scalar tensor of the gradients' dtype.

    Raises:
        RuntimeError: the norm is not finite, and `error_if_nonfinite`. The gradients are as they were.

    Example::

        loss.backward()
        norm = caesura.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    """
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gradients = [parameter.grad for parameter in given if parameter.grad is not None]
    if gradients and norm_type == 2 and all(map(_is_plain, gradients)) and not dispatch_modes() and not function_modes():
        norm: Any = _core.clip_gradients(gradients, float(max_norm), error_if_nonfinite)
        if norm is not None and not (error_if_nonfinite and not norm.isfinite()):
            increment_version([gradient for gradient in gradients if not gradient.is_inference()])
            result: torch.Tensor = norm
            return result
    is_empty = not given and isinstance(parameters, types.GeneratorType)  # which PyTorch warns of
    return torch.nn.utils.clip_grad_norm_(parameters if is_empty else given, max_norm, norm_type, error_if_nonfinite, foreach)


def _is_plain(gradient: torch.Tensor) -> bool:
    return type(gradient) is torch.Tensor and gradient.layout is torch.strided and not gradient.is_neg()
