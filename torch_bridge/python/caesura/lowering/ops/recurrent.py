# SPDX-License-Identifier: Apache-2.0
"""A layer of nn.LSTM, nn.GRU or nn.RNN in one direction, forward and backward (capture/ops/recurrent.py)."""

import torch
from onnx import TensorProto

import caesura.capture.ops.recurrent  # noqa: F401  the operators
from caesura.lowering.onnx_builder import DOMAIN, Tensor
from caesura.lowering.registry import register
from caesura.rewrites.fx_meta import is_read, result

_OPS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
_ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}  # ONNX's gates among PyTorch's: i f g o, r z n


def _in_order(w, kind, name, back=False):
    """Rows of gates as ONNX has them, or back to PyTorch's."""
    if kind not in _ORDER:
        return name
    order = _ORDER[kind]
    parts = w.op("Split", [name], outputs=len(order), axis=0, num_outputs=len(order))
    return w.op("Concat", [parts[order.index(i) if back else order[i]] for i in range(len(order))], axis=0)


def _stacked(w, name):
    return w.op("Unsqueeze", [name, w.ints([0])])


def _inputs(w, kind, x, weight, recurrent, b, rb, h, c, lengths):
    """The inputs of the ONNX op."""
    weights = [_stacked(w, _in_order(w, kind, tensor.name)) for tensor in (weight, recurrent)]
    bias = None
    if b is not None:
        bias = _stacked(w, w.op("Concat", [_in_order(w, kind, b.name), _in_order(w, kind, rb.name)], axis=0))
    states = [_stacked(w, state.name) for state in (h, c) if state is not None]
    steps = None if lengths is None else w.op("Cast", [lengths.name], to=TensorProto.INT32)
    return [x.name, *weights, bias, steps, *states]


def _attributes(kind, recurrent, reverse):
    attributes = {"hidden_size": recurrent.shape[1], "direction": "reverse" if reverse else "forward"}
    if kind == "gru":
        attributes["linear_before_reset"] = 1
    if kind == "rnn_relu":
        attributes["activations"] = ["Relu"]
    return attributes


@register(torch.ops.caesura.recurrent.default)
def recurrent(w, node, kind, x, weight, recurrent, b, rb, h, c, reverse, lengths=None):
    states = 1 if c is None else 2
    outputs = [w.fresh("recurrent") for _ in range(1 + states)]
    attributes = _attributes(kind, recurrent, reverse)
    inputs = _inputs(w, kind, x, weight, recurrent, b, rb, h, c, lengths)
    trace = None
    if is_read(node, 3):
        trace = Tensor(w.fresh("trace"), *result(node, 3))
        w.node(_OPS[kind] + "Training", inputs, [*outputs, trace.name], domain=DOMAIN, **attributes)
    else:
        w.node(_OPS[kind], inputs, outputs, **attributes)
    y = Tensor(w.op("Squeeze", [outputs[0], w.ints([1])]), *result(node, 0))
    lasts = [Tensor(w.op("Squeeze", [name, w.ints([0])]), *result(node, 1)) for name in outputs[1:]]
    return (y, *lasts, *[None] * (2 - states), trace)


@register(torch.ops.caesura.recurrent_backward.default)
def recurrent_backward(w, node, kind, dy, dh, dc, x, weight, recurrent, b, rb, h, c, trace, reverse, lengths=None):
    given = [w.op("Unsqueeze", [dy, w.ints([1])]), _stacked(w, dh.name)]
    inputs = _inputs(w, kind, x, weight, recurrent, b, rb, h, c, lengths)
    if c is not None:
        given.append(_stacked(w, dc.name))
        inputs.append(None)  # peepholes
    states = 1 if c is None else 2
    outputs = w.op(_OPS[kind] + "Grad", [*given, *inputs, trace], outputs=4 + states, domain=DOMAIN,
                   **_attributes(kind, recurrent, reverse))
    dx, dw, dr, db, *dstates = outputs

    def give(index, name):
        return Tensor(name, *result(node, index))

    def squeezed(name):
        return w.op("Squeeze", [name, w.ints([0])])

    weights = [give(1 + i, _in_order(w, kind, squeezed(name), back=True)) for i, name in enumerate((dw, dr))]
    biases = [None, None]
    if b is not None:
        halves = w.op("Split", [squeezed(db)], outputs=2, axis=0, num_outputs=2)
        biases = [give(3 + i, _in_order(w, kind, half, back=True)) for i, half in enumerate(halves)]
    lasts = [give(5 + i, squeezed(name)) for i, name in enumerate(dstates)]
    return (give(0, dx), *weights, *biases, *lasts, *[None] * (2 - len(lasts)))
