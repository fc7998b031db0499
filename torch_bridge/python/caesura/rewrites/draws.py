# SPDX-License-Identifier: Apache-2.0
"""Random numbers that PyTorch's generator gives to a captured graph."""

import torch

from caesura.capture.rng_inputs import DRAWS
from caesura.rewrites.fx_meta import draws, is_static, is_tensor
from caesura.rewrites.layout import as_traced

aten = torch.ops.aten

# Calls whose results hold no values that a kernel computed.
EMPTY = {aten.empty_strided.default, aten.empty_permuted.default}
# Messages name these replacements of draws that depend on values: PyTorch's generator gives the numbers, kernels compute the rest.
_DRAWN_AS = {
    aten.multinomial.default: "(p / torch.empty_like(p).exponential_()).argmax(-1) where one class of each row is drawn",
    aten.normal.Tensor_Tensor: "mean + std * torch.randn_like(mean)", aten.normal.Tensor_float: "mean + std * torch.randn_like(mean)",
    aten.normal.float_Tensor: "mean + std * torch.randn_like(std)",
}


def why_drawn(node):
    """Why PyTorch draws the node's random numbers, and what to write instead."""
    instead = _DRAWN_AS.get(node.target)
    return ("its random numbers depend on values, PyTorch draws them: "
            f"{f'write {instead}' if instead else 'draw them outside of the module, and hand them over'}")


def draw_early(graph: torch.fx.Graph) -> None:
    """Draws in the shape of a tensor do not wait for that tensor if its shape is known. They use a tensor with eager's
    layout, not our dense one, since numbers are drawn in memory order."""
    for node in list(graph.nodes):
        source = node.args[0] if draws(node) and node.args else None
        if not isinstance(source, torch.fx.Node) or source.target in EMPTY or not is_tensor(source):
            continue
        if source.meta["val"].device.type != "cpu":
            continue
        given, value = source.meta["val"], node.meta["val"]
        if node.target not in DRAWS or not is_static((*given.shape, *given.stride())):
            node.args = (as_traced(graph, node, source), *node.args[1:])
            continue
        with graph.inserting_before(node):
            if node.target == aten.rand_like.default and value.is_contiguous():
                drawn = graph.call_function(aten.rand.default, (list(value.shape),),
                                            {"dtype": value.dtype, "device": value.device})
            else:
                like = graph.call_function(aten.empty_strided.default, (list(given.shape), list(given.stride())),
                                           {"dtype": given.dtype, "device": given.device})
                like.meta = {**node.meta, "val": given}
                drawn = graph.call_function(node.target, (like, *node.args[1:]), node.kwargs)
        drawn.meta = dict(node.meta)
        node.replace_all_uses_with(drawn)
        graph.erase_node(node)
