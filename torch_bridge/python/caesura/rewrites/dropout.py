# SPDX-License-Identifier: Apache-2.0
"""Dropouts as products with masks. PyTorch's generator draws the masks, which depend on sizes only; our kernels multiply."""

import torch

from caesura.rewrites.layout import back, call, memory_order

aten = torch.ops.aten


def take_dropouts_apart(graph: torch.fx.Graph) -> list:
    """Puts a draw and two products, as PyTorch's kernel makes them, in the place of each dropout on the CPU. Returns those that
    stay, because the graph has no number for one of their sizes."""
    known, left = {}, []
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            known.setdefault(value.node.expr, node)
        if node.target != aten.native_dropout.default:
            continue
        x, ratio, training = node.args
        value = x.meta["val"]
        sizes = [size if isinstance(size, int) else known.get(size.node.expr) for size in value.shape]
        order = memory_order(torch.empty_like(value))  # masks are drawn in the order of eager's memory
        if value.device.type != "cpu" or not training:
            continue
        if None in sizes or order is None:
            left.append(node)
            continue
        with graph.inserting_before(node):
            like = graph.call_function(aten.empty_permuted.default, ([sizes[axis] for axis in order], list(range(len(order)))),
                                       {"dtype": torch.bool, "device": value.device})
            like.meta = {**node.meta, "val": value.new_empty([value.shape[axis] for axis in order], dtype=torch.bool)}
            mask = call(graph, node, aten.bernoulli.p, like, 1 - ratio)
            if order != list(range(len(order))):
                mask = back(graph, mask, order)
            kept = call(graph, node, aten.mul.Tensor, x, call(graph, node, aten._to_copy.default, mask, dtype=value.dtype))
            y = call(graph, node, aten.mul.Tensor, kept, 0.0 if ratio == 1 else 1 / (1 - ratio))
        for part in list(node.users):
            part.replace_all_uses_with((y, mask)[part.args[1]])
            graph.erase_node(part)
        graph.erase_node(node)
    return left
