# SPDX-License-Identifier: Apache-2.0
"""Selects PyTorch's decompositions of ATen calls, and switches off one that is wrong."""

import functools

import torch

from caesura.capture.compat import (DispatchKey, core_aten_decompositions, global_decomposition_table, registrations,
                                    without_kernel)
from caesura.capture.patches import Shared

# PyTorch 2.13 counts a row's classes with other rows' targets here. A trace runs this decomposition whatever the table says,
# because it is a kernel of the operator too.
_WRONG = torch.ops.aten.multilabel_margin_loss_forward.default


def decompositions(kept) -> dict:
    """PyTorch's own decompositions of the calls that are not `kept` as they are."""
    return {target: function for target, function in _table(*_registered()).items() if target not in kept}


@functools.lru_cache(maxsize=1)
def _table(operators, registered) -> dict:  # PyTorch takes 80 ms for it, in each call
    return {target: function for target, function in core_aten_decompositions().items()
            if target is not _WRONG and target.namespace != "caesura"}


def _registered() -> tuple:
    """The operators that PyTorch makes the table from; those of libraries come and go. Each capture makes one of ours,
    whose kernel is its decomposition."""
    operators = set()
    for name in registrations("CompositeImplicitAutograd"):
        namespace, name = name.split("::")
        if namespace != "caesura":
            operators.add((name, None if namespace == "aten" else getattr(getattr(torch.ops, namespace), name.split(".")[0])))
    return frozenset(operators), len(global_decomposition_table["post_autograd"])


# Traces within it do without the wrong decomposition.
corrected = Shared(functools.partial(without_kernel, _WRONG, DispatchKey.Autograd))
