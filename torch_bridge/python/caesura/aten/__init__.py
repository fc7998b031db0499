# SPDX-License-Identifier: Apache-2.0
"""ATen calls as ONNX ops: one table, a function an op, a file an op family.

Importing the package fills the table.
"""

from caesura.aten import (  # noqa: F401
    attention,
    conventions,
    convolution,
    elementwise,
    indexing,
    loss,
    matmul,
    movement,
    normalization,
    pooling,
    recurrent,
    reduction,
    symbolic,
)
from caesura.aten.graph_import import import_graph
from caesura.aten.table import Refused, TABLE

__all__ = ["Refused", "TABLE", "import_graph"]
