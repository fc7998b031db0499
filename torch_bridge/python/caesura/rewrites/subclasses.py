# SPDX-License-Identifier: Apache-2.0
"""Tensors that stand for several tensors, jagged nested ones above all, as far as a captured step does not express them."""

import torch

from caesura.rewrites.dtensors import is_dtensor
from caesura.rewrites.fx_meta import describe


def refused_subclasses(graph: torch.fx.GraphModule) -> list:
    """A line for each use of such tensors in Dynamo's graph that a step does not express. DTensors have checks of their own."""
    problems = []
    for node in graph.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        if hasattr(value, "__tensor_flatten__") and not is_dtensor(value):
            advice = (": hand over its values() and offsets(), and make it in the forward, by torch.nested.nested_tensor_from_jagged()"
                      if value.layout == torch.jagged else ": hand over plain tensors")
            problems.append(f"it is given a {type(value).__name__}, which stands for several tensors{advice} "
                            f"(at {describe(next(iter(node.users), node))})")
    for node in graph.graph.find_nodes(op="call_function", target=torch.nn.functional.layer_norm):
        if getattr(node.args[0].meta.get("example_value"), "layout", None) == torch.jagged:  # Dynamo fails to guard its sizes
            problems.append("layer_norm() of a jagged nested tensor x: make the tensor anew of its values, by "
                            f"torch.nested.nested_tensor_from_jagged(norm(x.values()), x.offsets()) (at {describe(node)})")
    return problems
