# SPDX-License-Identifier: Apache-2.0
"""ONNX ops as PyTorch has them: movement and indexing."""

import itertools

import torch
import torch.nn.functional as F


def ints(tensor):
    return [int(v) for v in tensor.reshape(-1)]


def _depth_to_space(a, x):
    if a.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, a["blocksize"])
    b, (n, c, h, w) = a["blocksize"], x.shape
    return x.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // (b * b), h * b, w * b)


def _space_to_depth(a, x):
    b, (n, c, h, w) = a["blocksize"], x.shape
    return x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4).reshape(n, c * b * b, h // b, w // b)


def pad(a, x, pads, value=None, axes=None):
    """Pads by a map of indices, in every mode, because PyTorch's own padding takes only the last axes."""
    pads, axes = ints(pads), ints(axes) if axes is not None else range(x.dim())
    mode, half = a.get("mode", "constant"), len(pads) // 2
    for i, axis in enumerate(axes):
        begin, end, size = pads[i], pads[half + i], x.shape[axis]
        places = torch.arange(-begin, size + end)
        if mode == "constant":
            inside = (places >= 0) & (places < size)
            taken = x.index_select(axis, places.clamp(0, size - 1))
            shape = [-1 if d == axis % x.dim() else 1 for d in range(x.dim())]
            x = torch.where(inside.reshape(shape), taken, torch.zeros((), dtype=x.dtype) if value is None else value)
            continue
        if mode == "reflect":
            places = (places.abs() - (size - 1)).abs().neg() + size - 1
        x = x.index_select(axis, places % size if mode == "wrap" else places.clamp(0, size - 1))
    return x


def _reshape(a, x, shape):
    shape = ints(shape)
    return x.reshape([x.shape[i] if v == 0 and not a.get("allowzero") else v for i, v in enumerate(shape)])


def _reverse_sequence(a, x, lengths):
    time, batch = a.get("time_axis", 0), a.get("batch_axis", 1)
    rows = []
    for b, n in enumerate(ints(lengths)):
        row = x.select(batch, b)
        axis = time if time < batch else time - 1
        places = list(range(n))[::-1] + list(range(n, row.shape[axis]))
        rows.append(row.index_select(axis, torch.tensor(places)))
    return torch.stack(rows, batch)


def _slice(a, x, starts, ends, axes=None, steps=None):
    starts, ends = ints(starts), ints(ends)
    axes = ints(axes) if axes is not None else range(len(starts))
    steps = ints(steps) if steps is not None else [1] * len(starts)
    for begin, end, axis, step in zip(starts, ends, axes, steps):
        places = list(range(x.shape[axis]))[slice(begin, end if end >= -x.shape[axis] else None, step)]
        x = x.index_select(axis, torch.tensor(places, dtype=torch.int64))
    return x


def _split(a, x, sizes=None):
    axis = a.get("axis", 0)
    return x.split(ints(sizes), axis) if sizes is not None else x.tensor_split(a["num_outputs"], axis)


def _squeeze(a, x, axes=None):
    return x.squeeze() if axes is None else x.squeeze(ints(axes))


def _unsqueeze(a, x, axes):
    rank = x.dim() + axes.numel()
    for axis in sorted(v % rank for v in ints(axes)):
        x = x.unsqueeze(axis)
    return x


def _center_crop_pad(a, x, shape):
    for axis, size in enumerate(ints(shape)):
        extra = size - x.shape[axis]
        if extra < 0:
            x = x.narrow(axis, -extra // 2, size)
        else:
            pads = [0] * (2 * x.dim())
            pads[axis], pads[x.dim() + axis] = extra // 2, extra - extra // 2
            x = pad({}, x, torch.tensor(pads))
    return x


def _trilu(a, x, k=None):
    return (torch.triu if a.get("upper", 1) else torch.tril)(x, 0 if k is None else int(k))


MOVEMENT = {
    "CenterCropPad": _center_crop_pad,
    "Concat": lambda a, *xs: torch.cat(xs, a["axis"]),
    "DepthToSpace": _depth_to_space,
    "Expand": lambda a, x, shape: x.expand(torch.broadcast_shapes(x.shape, ints(shape))),
    "Flatten": lambda a, x: x.reshape(x.shape[:a.get("axis", 1)].numel(), -1),
    "Pad": pad,
    "Reshape": _reshape,
    "ReverseSequence": _reverse_sequence,
    "Shape": lambda a, x: torch.tensor(x.shape),
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": lambda a, x, repeats: x.repeat(ints(repeats)),
    "Transpose": lambda a, x: x.permute(a.get("perm", list(range(x.dim()))[::-1])),
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}


def _compress(a, x, condition):
    axis = a.get("axis")
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    return x.index_select(axis, condition.nonzero().reshape(-1))


def _gather(a, x, places):
    axis = a.get("axis", 0) % x.dim()
    flat = x.index_select(axis, places.reshape(-1) % x.shape[axis])
    return flat.reshape(x.shape[:axis] + places.shape + x.shape[axis + 1:])


def _gather_nd(a, x, places):
    batch = a.get("batch_dims", 0)
    out = []
    for at in itertools.product(*(range(n) for n in places.shape[:-1])):
        out.append(x[at[:batch]][tuple(ints(places[at]))])
    return torch.stack(out).reshape(places.shape[:-1] + out[0].shape)


def _one_hot(a, places, depth, values):
    hot = F.one_hot(places % int(depth), int(depth)).to(torch.bool)
    return torch.where(hot, values[1], values[0])


_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter_elements(a, x, places, updates):
    axis, reduction = a.get("axis", 0), a.get("reduction", "none")
    if reduction == "none":
        return x.scatter(axis, places, updates)
    return x.scatter_reduce(axis, places, updates, _REDUCE[reduction])


def _scatter_nd(a, x, places, updates):
    """As a scatter of whole rows: places index the first axes."""
    depth, reduction = places.shape[-1], a.get("reduction", "none")
    rows = torch.tensor([sum(int(p) % n * x.shape[i + 1:depth].numel() for i, (p, n) in enumerate(zip(place, x.shape)))
                         for place in places.reshape(-1, depth)])
    flat, updates = x.reshape(x.shape[:depth].numel(), -1), updates.reshape(rows.numel(), -1)
    index = rows.unsqueeze(1).expand_as(updates)
    if reduction == "none":
        return flat.scatter(0, index, updates).reshape(x.shape)
    return flat.scatter_reduce(0, index, updates, _REDUCE[reduction]).reshape(x.shape)


def _tensor_scatter(a, x, updates, begins=None):
    axis = a.get("axis", -2) % x.dim()
    rows = []
    for b in range(x.shape[0]):
        begin = 0 if begins is None else int(begins[b])
        places = torch.arange(begin, begin + updates.shape[axis]) % x.shape[axis]
        rows.append(x[b].index_copy(axis - 1, places, updates[b]))
    return torch.stack(rows)


def _top_k(a, x, k):
    return torch.topk(x, int(k), a.get("axis", -1), bool(a.get("largest", 1)))


INDEXING = {
    "Compress": _compress,
    "Gather": _gather,
    "GatherElements": lambda a, x, i: x.gather(a.get("axis", 0), i % x.shape[a.get("axis", 0)]),
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "Range": lambda a, s, l, d: s + d * torch.arange(max(0, int(torch.ceil((l - s) / d))), dtype=s.dtype),
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "TopK": _top_k,
}

OPS = {**MOVEMENT, **INDEXING}
