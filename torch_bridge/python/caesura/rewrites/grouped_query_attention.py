# SPDX-License-Identifier: Apache-2.0
"""Attention whose keys and values serve a group of heads each, as Llama's: modules repeat them for every head of the group.

Our kernels, like PyTorch's own attention under enable_gqa, take them as they were: nothing is repeated, nothing repeated is
saved for the backward, and their gradients come summed over the group.
"""

import torch

aten = torch.ops.aten
_FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_RESHAPES = {aten.clone.default, aten.view.default, aten._unsafe_view.default}


def take_unrepeated(graph):
    """Gives attention the keys and values that its inputs repeat. Where somebody else reads the gradient of a repetition, beside
    the sum over its group, that attention stays as it is."""
    for attention in graph.find_nodes(op="call_function", target=_FORWARD):
        query, *repeated = attention.args[:3]
        keys = [_unrepeated(r) for r in repeated]
        backwards = [u for u in repeated[0].users if u.target is _BACKWARD and u.args[1:4] == (query, *repeated)]
        if None in keys or any(_group_sums(b, keys) is None for b in backwards):
            continue
        attention.args = (query, *keys, *attention.args[3:])
        for backward in backwards:
            sums = _group_sums(backward, keys)
            backward.args = (*backward.args[:2], *keys, *backward.args[4:])
            gradients = [k.meta["val"].new_empty(k.meta["val"].shape) for k in keys]
            backward.meta["val"] = (backward.meta["val"][0], *gradients)
            for gradient, total in sums:
                gradient.meta["val"] = gradients[gradient.args[1] - 1]
                with graph.inserting_before(total):
                    summed = graph.call_function(aten.unsqueeze.default, (gradient, 2))
                summed.meta = total.meta
                total.replace_all_uses_with(summed)


def _unrepeated(node):
    """The [batch, heads, time, width] tensor that the node repeats for each head of a group; None if it repeats
    none."""
    result = node.meta["val"].shape
    while node.target in _RESHAPES:
        node = node.args[0]
    if node.target is not aten.expand.default or node.args[0].target is not aten.unsqueeze.default:
        return None
    unsqueezed, repeated = node.args[0], node.meta["val"].shape
    if len(repeated) != 5 or unsqueezed.args[1] % 5 != 2 or not all(isinstance(d, int) for d in (repeated[1], repeated[2], result[1])):
        return None
    batch, heads, time, width = unsqueezed.args[0].meta["val"].shape
    group = repeated[2]
    same = tuple(repeated) == (batch, heads, group, time, width) and tuple(result) == (batch, heads * group, time, width)
    return unsqueezed.args[0] if same else None


def _group_sums(backward, keys):
    """Pairs of a gradient of keys or values and its sum over the group; None where anything else is done with one."""
    sums = []
    for gradient in backward.users:
        if gradient.args[1] == 0 or not gradient.users:
            continue
        view = next(iter(gradient.users))
        total = next(iter(view.users), None)
        if len(gradient.users) != 1 or len(view.users) != 1 or view.target is not aten.view.default:
            return None
        if total.target is not aten.sum.dim_IntList or total.args[1:] != ([2], True) or total.kwargs:
            return None
        batch, heads, time, width = keys[gradient.args[1] - 1].meta["val"].shape
        if tuple(total.meta["val"].shape) != (batch, heads, 1, time, width):
            return None
        sums.append((gradient, total))
    return sums
