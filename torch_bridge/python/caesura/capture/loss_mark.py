# SPDX-License-Identifier: Apache-2.0
"""The mark by which a captured step finds its loss among the graph's outputs."""

import torch


@torch.compiler.allow_in_graph
def as_loss(loss):
    """Marks the loss: only compile_step calls this function, and Dynamo's graph shows the call."""
    return loss.detach()


def attached_loss(graph: torch.fx.GraphModule) -> tuple:
    """The position of the loss among the graph's outputs, and its node, without as_loss()'s detach."""
    output = next(n for n in graph.graph.nodes if n.op == "output")
    position, node = next((i, n) for i, n in enumerate(output.args[0])
                          if isinstance(n, torch.fx.Node) and n.target is as_loss)
    loss = node.args[0]
    node.replace_all_uses_with(loss)  # type: ignore[arg-type]
    graph.graph.erase_node(node)
    return position, loss
