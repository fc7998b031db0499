# SPDX-License-Identifier: Apache-2.0
"""Traces PyTorch's own derivative of a call, for calls whose gradient at special values our rules would not have."""

import torch

from caesura.capture.compat import detect_fake_mode, make_fx, tree_leaves, tree_map


def tensors_given(node: torch.fx.Node) -> list | None:
    """The nodes of the tensors that the call is given, each once; None if it is given a number that changes."""
    nodes = list(dict.fromkeys(n for n in tree_leaves((node.args, node.kwargs)) if isinstance(n, torch.fx.Node)))
    return nodes if all(isinstance(n.meta["val"], torch.Tensor) for n in nodes) else None


def derivative(node: torch.fx.Node, nodes: list, inputs: list, decompositions) -> torch.fx.GraphModule:
    """The gradients of a call's first result, as a graph of ATen calls: from the result's gradient and the tensors that `nodes`
    are to the gradients of `inputs`, which are among the nodes (fake tensors all)."""
    def run(dy, *tensors):
        given = dict(zip(nodes, tensors))

        def call(*moving):
            known = given | dict(zip(inputs, moving))
            args, kwargs = tree_map(lambda a: known[a] if isinstance(a, torch.fx.Node) else a, (node.args, node.kwargs))
            made = node.target(*args, **kwargs)
            return made if isinstance(made, torch.Tensor) else made[0]

        return torch.func.vjp(call, *(given[i] for i in inputs))[1](dy)

    value = node.meta["val"]
    values = [value if isinstance(value, torch.Tensor) else value[0], *(n.meta["val"] for n in nodes)]
    with detect_fake_mode(values), torch.fx.traceback.preserve_node_meta():
        fresh = [torch.empty_like(value) for value in values]
        traced = make_fx(torch.func.functionalize(run), decomposition_table=decompositions)(*fresh)
    traced.graph.eliminate_dead_code()
    return traced
