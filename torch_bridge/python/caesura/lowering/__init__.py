# SPDX-License-Identifier: Apache-2.0
"""Lowers ATen calls to ONNX ops, by one table: a function for each op, a file for each op family.

Importing the package fills the table.
"""

from caesura.lowering.importer import import_graph
from caesura.lowering.ops import (  # noqa: F401
    attention,
    convolution,
    elementwise,
    gradient_conventions,
    indexing,
    loss,
    matmul,
    normalization,
    pooling,
    recurrent,
    reduction,
    shape,
    symbolic,
)
from caesura.lowering.registry import TABLE, Refused

__all__ = ["Refused", "TABLE", "import_graph"]
