# SPDX-License-Identifier: Apache-2.0
"""What dynamo traces in the place of functions of PyTorch's that no graph holds, because they look at values. Results are theirs."""

import contextlib
from unittest import mock

import torch
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.variables import UserFunctionVariable
from torch._dynamo.variables.builder import VariableBuilder

from caesura.ctc import ctc_loss


def _is_causal(mask, is_causal=None, size=None):
    """nn.Transformer looks whether a mask is causal, so that attention need not read it. Here it is read."""
    return is_causal is True


_STAND_INS = {
    torch.nn.functional.ctc_loss: ctc_loss,
    torch.nn.modules.transformer._detect_is_causal_mask: _is_causal,
}
_GRADIENTS = {"trace_autograd_ops": True} if hasattr(torch._dynamo.config, "trace_autograd_ops") else {}  # not in 2.12


def _traced(function):
    def build(builder, value):
        builder.install_guards(GuardBuilder.CLOSURE_MATCH)
        return UserFunctionVariable(function)

    return build


@contextlib.contextmanager
def capturing(**options):
    """Dynamo traces them so, and takes recurrent layers and gradients (torch.autograd.grad) into its graphs; further options
    are its own."""
    builders = {id(theirs): _traced(ours) for theirs, ours in _STAND_INS.items()}
    with torch._dynamo.config.patch(allow_rnn=True, **_GRADIENTS, **options), \
            mock.patch.dict(VariableBuilder._id_dispatch(), builders):
        yield
