# SPDX-License-Identifier: Apache-2.0
"""ONNX ops as PyTorch has them: convolution, pooling, normalization, losses, recurrence, attention."""

import math

import torch
import torch.nn.functional as F
from gradients_beside_pytorch_movement import ints, pad


def _window(a, rank):
    return a.get("strides", [1] * rank), a.get("dilations", [1] * rank)


def _padded(a, x, kernel, value=0.0):
    """Returns x with the op's pads, explicit or automatic, and the end pads that ceil_mode's last window needs."""
    rank = len(kernel)
    strides, dilations = _window(a, rank)
    pads = list(a.get("pads", [0] * (2 * rank)))
    for i in range(rank):
        size, extent = x.shape[2 + i], dilations[i] * (kernel[i] - 1) + 1
        if a.get("auto_pad", "NOTSET") == "SAME_UPPER":
            total = max(0, (math.ceil(size / strides[i]) - 1) * strides[i] + extent - size)
            pads[i], pads[rank + i] = total // 2, total - total // 2
        if a.get("ceil_mode"):
            rest = (size + pads[i] + pads[rank + i] - extent) % strides[i]
            pads[rank + i] += (strides[i] - rest) % strides[i]
    full = [0, 0] + pads[:rank] + [0, 0] + pads[rank:]
    return pad({}, x, torch.tensor(full), torch.tensor(value, dtype=x.dtype))


def _conv(a, x, w, b=None):
    strides, dilations = _window(a, w.dim() - 2)
    function = [F.conv1d, F.conv2d, F.conv3d][w.dim() - 3]
    return function(_padded(a, x, w.shape[2:]), w, b, strides, 0, dilations, a.get("group", 1))


def _conv_transpose(a, x, w, b=None):
    strides, dilations = _window(a, 2)
    pads, extra = a.get("pads", [0] * 4), a.get("output_padding", [0, 0])
    y = F.conv_transpose2d(x, w, b, strides, 0, extra, a.get("group", 1), dilations)
    return y[:, :, pads[0]:y.shape[2] - pads[2], pads[1]:y.shape[3] - pads[3]]


def _windows(a, x, value):
    """(n, c, places..., elements of the window)"""
    kernel = a["kernel_shape"]
    strides, dilations = _window(a, len(kernel))
    x = _padded(a, x, kernel, value)
    for i, (k, s, d) in enumerate(zip(kernel, strides, dilations)):
        x = x.unfold(2 + i, d * (k - 1) + 1, s)[..., ::d]
    return x.flatten(2 + len(kernel))


def _average_pool(a, x):
    total = _windows(a, x, 0.0).sum(-1)
    if a.get("count_include_pad"):
        return total / math.prod(a["kernel_shape"])
    return total / _windows(a, torch.ones_like(x), 0.0).sum(-1)


def _lp_pool(a, x):
    p = a.get("p", 2)
    return _windows(a, x, 0.0).abs().pow(p).sum(-1).pow(1 / p)


def _max_unpool(a, x, places, shape=None):
    # ONNX's indices count in the tensor that contains only the windows.
    inner = [(x.shape[2 + i] - 1) * s + k for i, (s, k) in enumerate(zip(a["strides"], a["kernel_shape"]))]
    size = ints(shape) if shape is not None else [*x.shape[:2], *inner]
    rows, columns = places % math.prod(inner) // inner[1], places % inner[1]
    return F.max_unpool2d(x, rows * size[3] + columns, a["kernel_shape"], a["strides"], output_size=size)


CONV_AND_POOL = {
    "AveragePool": _average_pool,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": lambda a, x: F.adaptive_avg_pool2d(x, 1),
    "GlobalLpPool": lambda a, x: torch.linalg.vector_norm(x, a.get("p", 2), (2, 3), True),
    "GlobalMaxPool": lambda a, x: F.adaptive_max_pool2d(x, 1),
    "LpPool": _lp_pool,
    "MaxPool": lambda a, x: _windows(a, x, -math.inf).amax(-1),
    "MaxUnpool": _max_unpool,
}


def _batch_norm(a, x, scale, bias, mean, var):
    if not a.get("training_mode"):
        shape = [1, -1] + [1] * (x.dim() - 2)
        mean, var, scale, bias = (v.reshape(shape) for v in (mean, var, scale, bias))
        return (x - mean) / torch.sqrt(var + a.get("epsilon", 1e-5)) * scale + bias
    return F.batch_norm(x, None, None, scale, bias, True, 0.0, a.get("epsilon", 1e-5)), None, None


def _lrn(a, x):
    size = a["size"]
    before = (size - 1) // 2
    square = F.pad(x.square().movedim(1, -1), (before, size - 1 - before)).unfold(-1, size, 1).sum(-1).movedim(-1, 1)
    return x / (a.get("bias", 1.0) + a.get("alpha", 1e-4) / size * square) ** a.get("beta", 0.75)


def _layer_norm(a, x, scale, bias=None):
    axis = a.get("axis", -1) % x.dim()
    return F.layer_norm(x, x.shape[axis:], scale, bias, a.get("epsilon", 1e-5))


def _mean_variance(a, x):
    axes = a.get("axes", [0, 2, 3])
    return (x - x.mean(axes, True)) / (x.var(axes, correction=0, keepdim=True).sqrt() + 1e-9)


def _dropout(a, x, ratio=None, training=None):
    """PyTorch would draw another mask, so the test takes it from our y, at elements of x that are not zero."""
    if training is None or not bool(training):
        return x
    mask = a["y"].ne(0)
    return x * mask / (1 - ratio), mask


NORMALIZATION = {
    "BatchNormalization": _batch_norm,
    "BatchNormalizationTraining": lambda a, *xs: _batch_norm({**a, "training_mode": 1}, *xs),
    "Dropout": _dropout,
    "GroupNormalization": lambda a, x, s, b: F.group_norm(x, a["num_groups"], s, b, a.get("epsilon", 1e-5)),
    "InstanceNormalization": lambda a, x, s, b: F.instance_norm(x, weight=s, bias=b, eps=a.get("epsilon", 1e-5)),
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": lambda a, x: F.log_softmax(x, a.get("axis", -1)),
    "LpNormalization": lambda a, x: F.normalize(x, a.get("p", 2), a.get("axis", -1)),
    "MeanVarianceNormalization": _mean_variance,
    "RMSNormalization": lambda a, x, s: F.rms_norm(x, s.shape, s, a.get("epsilon", 1e-5)),
    "Softmax": lambda a, x: F.softmax(x, a.get("axis", -1)),
}


def _options(a):
    return {"ignore_index": a.get("ignore_index", -100), "reduction": a.get("reduction", "mean")}


def _cross_entropy(a, scores, labels, weights=None):
    return F.cross_entropy(scores, labels, weights, **_options(a)), F.log_softmax(scores, 1)


def _nll(a, scores, labels, weights=None):
    return F.nll_loss(scores, labels, weights, **_options(a))


LOSSES = {"NegativeLogLikelihoodLoss": _nll, "SoftmaxCrossEntropyLoss": _cross_entropy}


def _recurrent(cell, gates):
    """Runs one direction and one step at a time. Rows whose sequence has ended keep their state and give zeros."""

    def run(a, x, w, r, b=None, lengths=None, h0=None, c0=None, peepholes=None):
        hidden, count = a["hidden_size"], w.shape[0]
        lengths = torch.full((x.shape[1],), x.shape[0]) if lengths is None else lengths
        outputs, last, cells = [], [], []
        for d in range(count):
            backwards = d == 1 or a.get("direction") == "reverse"
            wb, rb = (b[d].chunk(2)) if b is not None else (x.new_zeros(gates * hidden),) * 2
            state = [x.new_zeros(x.shape[1], hidden) if s is None else s[d] for s in (h0, c0)]
            steps = [x.new_zeros(x.shape[1], hidden)] * x.shape[0]
            for t in range(x.shape[0])[::-1 if backwards else 1]:
                fresh = cell(a, x[t], *state, w[d], r[d], wb, rb, None if peepholes is None else peepholes[d])
                alive = (t < lengths).unsqueeze(1)
                state = [torch.where(alive, new, old) for new, old in zip(fresh, state)]
                steps[t] = torch.where(alive, state[0], torch.zeros_like(state[0]))
            outputs.append(torch.stack(steps))
            last.append(state[0])
            cells.append(state[1])
        return torch.stack(outputs, 1), torch.stack(last), torch.stack(cells)

    return run


def _rnn_cell(a, x, h, c, w, r, wb, rb, p):
    activation = torch.sigmoid if a.get("activations") == ["Sigmoid"] else torch.tanh
    return activation(x @ w.t() + wb + h @ r.t() + rb), c


def _gru_cell(a, x, h, c, w, r, wb, rb, p):
    xz, xr, xh = (x @ w.t() + wb).chunk(3, 1)
    (rz, rr, rh), (bz, br, bh) = r.chunk(3), rb.chunk(3)
    z, reset = torch.sigmoid(xz + h @ rz.t() + bz), torch.sigmoid(xr + h @ rr.t() + br)
    if a.get("linear_before_reset"):
        new = torch.tanh(xh + reset * (h @ rh.t() + bh))
    else:
        new = torch.tanh(xh + (reset * h) @ rh.t() + bh)
    return (1 - z) * new + z * h, c


def _lstm_cell(a, x, h, c, w, r, wb, rb, p):
    i, o, f, g = (x @ w.t() + wb + h @ r.t() + rb).chunk(4, 1)
    pi, po, pf = p.chunk(3) if p is not None else (0, 0, 0)
    i, f = torch.sigmoid(i + pi * c), torch.sigmoid(f + pf * c)
    c = f * c + i * torch.tanh(g)
    return torch.sigmoid(o + po * c) * torch.tanh(c), c


RECURRENT = {"GRU": _recurrent(_gru_cell, 3), "LSTM": _recurrent(_lstm_cell, 4), "RNN": _recurrent(_rnn_cell, 1)}

OPS = {**CONV_AND_POOL, **NORMALIZATION, **LOSSES, **RECURRENT}
