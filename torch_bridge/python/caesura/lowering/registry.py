# SPDX-License-Identifier: Apache-2.0
"""The table of lowering rules: ATen overloads with an equivalent in ONNX ops."""

import torch

aten = torch.ops.aten
# OpOverload (or a Python function on SymInts) to a function (writer, node, *arguments in the schema's order).
TABLE = {}


class Refused(Exception):
    """This call has no equivalent among our ops; the message says why. node: the call, of import_graph's."""

    node = None


def register(*targets):
    """Enters a function for these targets: ATen overloads, or functions of Python on SymInts.

    The function gets the writer, the FX node, and the call's arguments with the schema's defaults filled in: tensors as
    Tensor, SymInts as ints or Scalar, lists of them likewise. It returns a Tensor or a Scalar, or a tuple of them with
    None for outputs that nobody reads.
    """
    def enter(function):
        for target in targets:
            TABLE[target] = function
        return function
    return enter
