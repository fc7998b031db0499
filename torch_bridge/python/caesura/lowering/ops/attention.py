# SPDX-License-Identifier: Apache-2.0
"""Scaled dot product attention, forward and backward."""

from caesura.capture.fx_meta import is_read, result
from caesura.lowering.onnx_builder import DOMAIN, Tensor
from caesura.lowering.registry import Refused, aten, register


def _check(dropout):
    if dropout != 0:
        raise Refused("attention with dropout inside")


@register(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(w, node, query, key, value, dropout, causal, mask, scale):
    _check(dropout)
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
    outputs = w.op("AttentionGrad", [dy, query, key, value, mask, y, lse], outputs=3, domain=DOMAIN,
                   is_causal=int(causal), scale=scale)
    return tuple(Tensor(name, *result(node, i)) for i, name in enumerate(outputs))
