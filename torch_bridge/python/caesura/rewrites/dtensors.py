# SPDX-License-Identifier: Apache-2.0
"""DTensors in a captured step: tensors of which each rank of a device mesh has a local part.

A step computes with the local parts. So each rank's graph has them as its inputs, and exchanges between the ranks as calls.
"""

import sys

import torch

from caesura.rewrites.fx_meta import describe, is_static


def is_dtensor(value) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # nobody has a DTensor who has not imported it
    return module is not None and isinstance(value, module.DTensor)


def held(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor of this rank's own elements: the local part of a DTensor; any other tensor itself."""
    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():  # with autograd it would be a view
        return tensor.to_local()


def _place_of_parts(graph: torch.fx.GraphModule, loss: torch.fx.Node):
    """The call that made plain tensors of parts which `loss` depends on, so that each rank has another loss; or None."""
    origins = {}
    for node in graph.graph.nodes:
        if is_dtensor(node.meta.get("example_value")) or node.target == "full_tensor":
            continue  # the placements of a DTensor tell what a rank has
        for source in node.all_input_nodes:
            value = source.meta.get("example_value")
            if is_dtensor(value) and not all(placement.is_replicate() for placement in value.placements):
                origins[node] = node
            elif source in origins:
                origins[node] = origins[source]
    return origins.get(loss)


def refused_dtensors(graph: torch.fx.GraphModule, loss: torch.fx.Node) -> list:
    """A line for each use of DTensors in Dynamo's graph that a step does not express."""
    problems = []
    for node in graph.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        if is_dtensor(value) and not is_static(value.shape):
            problems.append(f"a DTensor of a size that changes, {list(value.shape)}: write dynamic=False")
    output = next(n for n in graph.graph.nodes if n.op == "output")
    if is_dtensor(loss.meta["example_value"]):
        problems.append(f"the loss is a DTensor: write loss.full_tensor() (at {describe(loss)})")
    problems += [f"it leaves a DTensor in an attribute: leave its full_tensor() (at {describe(node)})" for node in output.args[0]
                 if node is not loss and isinstance(node, torch.fx.Node) and is_dtensor(node.meta.get("example_value"))]
    place = _place_of_parts(graph, loss)
    if place is not None:
        problems.append("each rank's loss is that of its own part: gather the parts before the loss, by "
                        f"output_layouts=Replicate() or full_tensor() (at {describe(place)})")
    return problems


def drop_meshes(module: torch.fx.GraphModule, inputs):
    """Leaves an AOT trace one input for each of Dynamo's `inputs`: of a DTensor it has the local part and the mesh."""
    placeholders = iter(module.graph.find_nodes(op="placeholder"))
    for value in inputs:
        next(placeholders)
        if is_dtensor(value):
            module.graph.erase_node(next(placeholders))
    module.recompile()
