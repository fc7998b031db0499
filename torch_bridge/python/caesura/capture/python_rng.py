# SPDX-License-Identifier: Apache-2.0
"""Handles numbers that a forward draws in Python (random.uniform)."""

import torch

from caesura.capture.compat import RandomValueSource


def take_as_given(graph: torch.fx.GraphModule, example_inputs) -> list:
    """dynamo traces them as float32 and hands them over in float64: has dynamo's graph cast them. Returns the example inputs
    as what comes."""
    inputs, placeholders = list(example_inputs), graph.graph.find_nodes(op="placeholder")
    first = next(node for node in graph.graph.nodes if node.op != "placeholder")
    for i, node in enumerate(placeholders):
        argument = node.meta.get("grapharg")
        if argument is None or not isinstance(argument.source, RandomValueSource) or inputs[i].dtype != torch.float32:
            continue
        with graph.graph.inserting_before(first):
            cast = graph.graph.call_method("to", (node, torch.float32))
        cast.meta["example_value"] = node.meta["example_value"]
        node.replace_all_uses_with(cast, delete_user_cb=lambda user, cast=cast: user is not cast)
        inputs[i] = node.meta["example_value"] = node.meta["example_value"].double()
    graph.recompile()
    return inputs
