# SPDX-License-Identifier: Apache-2.0
"""Scaled dot product attention, forward and backward."""

import struct

import torch

from caesura.lowering.onnx_builder import DOMAIN, Tensor
from caesura.lowering.registry import Refused, aten, register
from caesura.rewrites.fx_meta import is_read, result


def _check(dropout):
    if dropout != 0:
        raise Refused("attention with dropout inside")


def _scaled(w, query, scale):
    """The query and the scale for an attribute, which has 32 bits: a factor that they cannot hold goes into a float64 query."""
    if scale is None or query.dtype != torch.float64 or struct.unpack("f", struct.pack("f", scale))[0] == scale:
        return query, scale
    return w.make("Mul", [query, w.constant(scale, query.dtype)], query.dtype, query.shape), 1.0


@register(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(w, node, query, key, value, dropout, causal, mask, scale):
    _check(dropout)
    query, scale = _scaled(w, query, scale)
    inputs = [query, key, value] + ([mask] if mask is not None else [])
    (dtype, shape), (lse_dtype, lse_shape) = result(node, 0), result(node, 1)
    if not is_read(node, 1):
        return w.make("Attention", inputs, dtype, shape, is_causal=int(causal), scale=scale), None
    outputs = [w.fresh("attention"), "", "", "", w.fresh("lse")]
    w.node("AttentionTraining", inputs, outputs, domain=DOMAIN, is_causal=int(causal), scale=scale)
    return Tensor(outputs[0], dtype, shape), Tensor(outputs[4], lse_dtype, lse_shape)


@register(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_backward(w, node, dy, query, key, value, y, lse, dropout, causal, mask, scale):
    _check(dropout)
    scaled, kept = _scaled(w, query, scale)
    outputs = w.op("AttentionGrad", [dy, scaled, key, value, mask, y, lse], outputs=3, domain=DOMAIN,
                   is_causal=int(causal), scale=kept)
    dquery, *others = (Tensor(name, *result(node, i)) for i, name in enumerate(outputs))
    if scaled is not query:
        dquery = w.make("Mul", [dquery, w.constant(scale, query.dtype)], query.dtype, query.shape)
    return (dquery, *others)
