# SPDX-License-Identifier: Apache-2.0
"""Attention on a GPU, captured as the one call that it is on the CPU.

PyTorch would take it apart on a GPU, or choose one of several kernels of its own, each with other results saved.
"""

import math
import types

import torch

from caesura.rewrites.autograd_function import parts_of

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_MODULES = torch.nn.functional.multi_head_attention_forward
_CAPTURED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_IN_STEPS = torch.ops.aten._scaled_dot_product_attention_math


def take_attention(module: torch.fx.GraphModule, *, own_dropout: bool = False) -> None:
    """Lets the attentions in a graph of dynamo's be captured as one call each, those of nn.MultiheadAttention too.
    own_dropout: those with dropout are captured step by step; otherwise they stay PyTorch's, whose random numbers are
    eager's."""
    taken = attend_with_dropout if own_dropout else attend
    for part in parts_of(module):
        for node in part.graph.find_nodes(op="call_function", target=_ATTENTION):
            node.target = taken
        for node in part.graph.find_nodes(op="call_function", target=_MODULES):
            node.target = _module_with(taken)
        part.recompile()


def _module_with(attention):
    """nn.MultiheadAttention's function, which is one call in Dynamo's graphs, with another attention in it."""
    names = vars(torch.nn.functional) | {"scaled_dot_product_attention": attention}
    made = types.FunctionType(_MODULES.__code__, names, _MODULES.__name__, _MODULES.__defaults__)
    names[_MODULES.__name__] = made  # a torch function mode is handed it by this name
    made.__module__ = __name__  # a graph finds functions of PyTorch's by their names
    return made


def attend_with_dropout(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """scaled_dot_product_attention, as take_attention() has it captured: one call, or its steps where that does not fit."""
    kind = query.device.type
    if torch.is_autocast_enabled(kind) and query.dtype != torch.float64:
        query, key, value = (t.to(torch.get_autocast_dtype(kind)) for t in (query, key, value))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(attn_mask.logical_not(), -math.inf)
    elif attn_mask is not None:
        attn_mask = attn_mask.to(query.dtype)
    if dropout_p != 0 or not _fits(query, key, value, attn_mask):
        return _IN_STEPS(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
    return _CAPTURED(query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]


def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """The same, but PyTorch's own where it has dropout."""
    taken = attend_with_dropout if dropout_p == 0 else _ATTENTION
    return taken(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _fits(query, key, value, mask) -> bool:
    """As PyTorch asks on the CPU."""
    widths = {t.shape[-1] for t in (query, key, value)}
    if any(t.dim() != 4 or not t.dtype.is_floating_point for t in (query, key, value)) or len(widths) != 1:
        return False
    return mask is None or (mask.dim() in (2, 4) and not mask.requires_grad)


def _scores(query, key, mask, causal, scale):
    """The scores in float32 at least, before the softmax; keys repeated for the heads of a group."""
    kind = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(kind) @ key.to(kind).transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        scores = scores.masked_fill(scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril().logical_not(), -math.inf)
    return scores if mask is None else scores + mask


def _repeated(tensor, heads):
    return tensor.repeat_interleave(heads // tensor.shape[1], 1)


def _forward(query, key, value, dropout=0.0, causal=False, *, attn_mask=None, scale=None):
    key, value = (_repeated(t, query.shape[1]) for t in (key, value))
    scores = _scores(query, key, attn_mask, causal, scale)
    return (scores.softmax(-1) @ value.to(scores.dtype)).to(query.dtype), scores.logsumexp(-1)


def _backward(dy, query, key, value, y, lse, dropout, causal, *, attn_mask=None, scale=None):
    keys, values = (_repeated(t, query.shape[1]) for t in (key, value))
    scores = _scores(query, keys, attn_mask, causal, scale)
    weights, dy = (scores - lse.unsqueeze(-1)).exp(), dy.to(scores.dtype)
    slopes = dy @ values.to(scores.dtype).transpose(-2, -1) - (dy * y.to(scores.dtype)).sum(-1, keepdim=True)
    slopes = weights * slopes * (query.shape[-1] ** -0.5 if scale is None else scale)

    def of_group(gradient, like):
        return gradient.unflatten(1, (like.shape[1], -1)).sum(2).to(like.dtype)

    return ((slopes @ keys.to(scores.dtype)).to(query.dtype), of_group(slopes.transpose(-2, -1) @ query.to(scores.dtype), key),
            of_group(weights.transpose(-2, -1) @ dy, value))


# Functions for calls that our kernels refuse: PyTorch has these operators on the CPU only.
IN_PARTS = {_CAPTURED.default: _forward,
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _backward}
