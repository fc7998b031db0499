# SPDX-License-Identifier: Apache-2.0
"""ONNX ops as PyTorch has them: attention, images, Fourier transforms, sequences."""

import math

import torch
import torch.nn.functional as F
from gradients_beside_pytorch_movement import ints


def _heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2) if x.dim() == 3 else x


def _attention(a, q, k, v, mask=None, past_k=None, past_v=None):
    packed = q.dim() == 3
    q, k, v = (_heads(x, a.get(n)) for x, n in ((q, "q_num_heads"), (k, "kv_num_heads"), (v, "kv_num_heads")))
    if past_k is not None:
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    present_k, present_v = k, v
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * a.get("scale", 1 / math.sqrt(q.shape[-1]))
    if mask is not None:
        scores = scores + mask
    if a.get("is_causal"):
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if a.get("softcap"):
        scores = a["softcap"] * torch.tanh(scores / a["softcap"])
    weights = F.softmax(scores, -1)
    y = weights @ v
    return y.transpose(1, 2).flatten(2) if packed else y, present_k, present_v, weights


def _rotary(a, x, cos, sin, places=None):
    rank3 = x.dim() == 3
    x = _heads(x, a["num_heads"]) if rank3 else x
    if places is not None:
        cos, sin = cos[places], sin[places]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    one, two = (x[..., ::2], x[..., 1::2]) if a.get("interleaved") else x.chunk(2, -1)
    real, imaginary = one * cos - two * sin, one * sin + two * cos
    y = torch.stack([real, imaginary], -1).flatten(-2) if a.get("interleaved") else torch.cat([real, imaginary], -1)
    return y.transpose(1, 2).flatten(2) if rank3 else y


def _causal_conv(a, x, w, b=None, past=None):
    past = x.new_zeros(*x.shape[:2], w.shape[-1] - 1) if past is None else past
    full = torch.cat([past, x], -1)
    y = F.conv1d(full, w, b, groups=x.shape[1])
    return F.silu(y) if a.get("activation") in ("silu", "swish") else y, full[..., x.shape[-1]:]


def _linear_attention(a, q, k, v, past=None, decay=None, beta=None):
    """For each token the state decays, is corrected (delta), grows by the update, and is read."""
    rule, heads = a.get("update_rule", "gated_delta"), a["q_num_heads"]
    q, k, v = (_heads(x, n) for x, n in ((q, heads), (k, a["kv_num_heads"]), (v, a["kv_num_heads"])))
    scale = a.get("scale", 0.0) or 1 / math.sqrt(q.shape[-1])
    state = q.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]) if past is None else past
    rows = []
    for t in range(q.shape[2]):
        key, value = k[:, :, t, :, None], v[:, :, t, None, :]
        if decay is not None and "gated" in rule:
            state = state * _heads(decay, a["kv_num_heads"])[:, :, t, :, None].exp()
        if "delta" in rule:
            value = beta[:, t, :, None, None] * (value - key.mT @ state)
        state = state + key * value
        rows.append(scale * (q[:, :, t, None, :] @ state.repeat_interleave(heads // k.shape[1], 1)).squeeze(2))
    return torch.stack(rows, 2).transpose(1, 2).flatten(2), state


ATTENTION = {
    "Attention": _attention,
    "CausalConvWithState": _causal_conv,
    "LinearAttention": _linear_attention,
    "RotaryEmbedding": _rotary,
}


def _resize(a, x, roi=None, scales=None, sizes=None):
    size = ints(sizes)[2:] if sizes is not None else [int(n * f) for n, f in zip(x.shape[2:], scales[2:].tolist())]
    if a.get("mode", "nearest") == "nearest":  # PyTorch rounds up if two are equally near
        for axis, n in enumerate(size, 2):
            places = torch.ceil((torch.arange(n, dtype=torch.float64) + 0.5) * x.shape[axis] / n - 1)
            x = x.index_select(axis, places.long().clamp(0, x.shape[axis] - 1))
        return x
    mode = {"linear": "bilinear", "cubic": "bicubic"}[a["mode"]]
    corners = a.get("coordinate_transformation_mode") == "align_corners"
    return F.interpolate(x, size, mode=mode, align_corners=corners, antialias=bool(a.get("antialias")))


def _grid_sample(a, x, grid):
    mode = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}[a.get("mode", "linear")]
    return F.grid_sample(x, grid, mode, a.get("padding_mode", "zeros"), bool(a.get("align_corners", 0)))


def _col2im(a, x, image, block):
    pads, strides = a.get("pads", [0] * 4), a.get("strides", [1, 1])
    size = [n + pads[i] + pads[2 + i] for i, n in enumerate(ints(image))]
    full = F.fold(x, size, ints(block), a.get("dilations", [1, 1]), 0, strides)
    return full[:, :, pads[0]:size[0] - pads[2], pads[1]:size[1] - pads[3]]


def _affine_grid(a, theta, size):
    return F.affine_grid(theta, ints(size), bool(a.get("align_corners", 0)))


IMAGE = {"AffineGrid": _affine_grid, "Col2Im": _col2im, "GridSample": _grid_sample, "Resize": _resize}


def _complex(x):
    return torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x.squeeze(-1)


def _dft(a, x, length=None, axis=None):
    axis = (-2 if axis is None else int(axis)) % x.dim()
    n = None if length is None else int(length)
    if a.get("inverse") and a.get("onesided"):
        return torch.fft.irfft(_complex(x), n, axis).unsqueeze(-1)
    if a.get("onesided"):
        return torch.view_as_real(torch.fft.rfft(_complex(x), n, axis))
    return torch.view_as_real((torch.fft.ifft if a.get("inverse") else torch.fft.fft)(_complex(x), n, axis))


def _stft(a, x, step, window=None, length=None):
    n = window.numel() if length is None else int(length)
    window = torch.ones(n, dtype=x.dtype) if window is None else window
    y = torch.stft(x.squeeze(-1), n, int(step), n, window, center=False, onesided=bool(a.get("onesided", 1)),
                   return_complex=True)
    return torch.view_as_real(y).transpose(1, 2)


def _split_to_sequence(a, x, lengths=None):
    axis = a.get("axis", 0)
    parts = x.split(1 if lengths is None else (ints(lengths) if lengths.dim() else int(lengths)), axis)
    return list(parts) if lengths is not None or a.get("keepdims", 1) else [part.squeeze(axis) for part in parts]


def _concat_from_sequence(a, parts):
    return (torch.stack if a.get("new_axis") else torch.cat)(parts, a["axis"])


def _insert(a, parts, x, at=None):
    place = len(parts) if at is None else int(at) % (len(parts) + 1)
    return parts[:place] + [x] + parts[place:]


def _erase(a, parts, at=None):
    place = (-1 if at is None else int(at)) % len(parts)
    return parts[:place] + parts[place + 1:]


SEQUENCES = {
    "ConcatFromSequence": _concat_from_sequence,
    "Optional": lambda a, x: x,
    "OptionalGetElement": lambda a, x: x,
    "SequenceAt": lambda a, parts, at: parts[int(at)],
    "SequenceConstruct": lambda a, *parts: list(parts),
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SplitToSequence": _split_to_sequence,
}

OPS = {**ATTENTION, **IMAGE, "DFT": _dft, "STFT": _stft, **SEQUENCES}
