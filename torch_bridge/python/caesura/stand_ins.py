# SPDX-License-Identifier: Apache-2.0
"""What dynamo traces in the place of functions of PyTorch's that no graph holds, because they look at values. Results are theirs."""

import contextlib
import operator
from unittest import mock

import torch
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.variables import TensorVariable, UserFunctionVariable
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


_as_python_constant = TensorVariable.as_python_constant


def _as_constant(variable):
    """`torch.rand([]) < 0.0` is False: layers that are dropped with probability 0 (transformers') are no branch."""
    node = variable.proxy.node
    if node.target is operator.lt and getattr(node.args[0], "target", None) is torch.rand:
        if isinstance(node.args[1], (int, float)) and node.args[1] <= 0:
            return False
    return _as_python_constant(variable)


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
            mock.patch.object(TensorVariable, "as_python_constant", _as_constant), \
            mock.patch.dict(VariableBuilder._id_dispatch(), builders):
        yield
