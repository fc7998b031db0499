# SPDX-License-Identifier: Apache-2.0
"""gcn.py's loop with torch_geometric's SAGEConv."""

import gcn
from torch_geometric.nn import SAGEConv


def run(loop):
    gcn.train(loop, SAGEConv)
