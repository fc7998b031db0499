# SPDX-License-Identifier: Apache-2.0
"""Products with a frozen matrix in blocks of 4 or 8 bits, in the layout of MatMulNBits (com.microsoft).

W [out, in] is (q - zero point) * scale. qweight [out, blocks, block size * bits / 8] holds q, low bits first; scales and
zero_points [out, blocks]; without zero points they are 2^(bits - 1). Where no program of caesura's runs, PyTorch unpacks some rows
at a time.
"""

from typing import Optional

import torch

_ROWS = 4096  # that are unpacked at a time

_library = torch.library.Library("caesura", "FRAGMENT")
_MATRIX = "Tensor qweight, Tensor scales, Tensor? zero_points, int bits, int in_features"
_library.define(f"matmul_nbits(Tensor x, {_MATRIX}) -> Tensor")  # x W^T
_library.define(f"transposed_matmul_nbits(Tensor x, {_MATRIX}) -> Tensor")  # x W


def unpacked(qweight: torch.Tensor, scales: torch.Tensor, zero_points: Optional[torch.Tensor], bits: int,
             in_features: int) -> torch.Tensor:
    """W, in the dtype of the scales."""
    q = qweight if bits == 8 else torch.stack([qweight & 15, qweight >> 4], -1).flatten(-2)
    zeros = 2 ** (bits - 1) if zero_points is None else zero_points[..., None]
    return ((q.to(scales.dtype) - zeros) * scales[..., None]).flatten(-2)[..., :in_features]


def _slices(x, qweight, scales, zero_points, bits, in_features):
    """(first row, last row, those rows of W) for all rows of W."""
    for first in range(0, len(qweight), _ROWS):
        rows = slice(first, first + _ROWS)
        yield rows, unpacked(qweight[rows], scales[rows], None if zero_points is None else zero_points[rows], bits, in_features)


@torch.library.impl("caesura::matmul_nbits", "CompositeExplicitAutograd", lib=_library)
def _(x, *matrix):
    wide = x.to(matrix[1].dtype)
    return torch.cat([wide @ w.T for _, w in _slices(x, *matrix)], -1).to(x.dtype)


@torch.library.impl("caesura::transposed_matmul_nbits", "CompositeExplicitAutograd", lib=_library)
def _(x, *matrix):
    wide = x.to(matrix[1].dtype)
    return sum(wide[..., rows] @ w for rows, w in _slices(x, *matrix)).to(x.dtype)


@torch.library.register_fake("caesura::matmul_nbits", lib=_library)
def _(x, qweight, *others):
    return x.new_empty((*x.shape[:-1], qweight.shape[0]))


@torch.library.register_fake("caesura::transposed_matmul_nbits", lib=_library)
def _(x, qweight, scales, zero_points, bits, in_features):
    return x.new_empty((*x.shape[:-1], in_features))


def _keep(ctx, inputs, output):
    _, *matrix, ctx.bits, ctx.in_features = inputs
    ctx.save_for_backward(*matrix)


def _backward_by(operator):
    def backward(ctx, dy):
        return operator(dy, *ctx.saved_tensors, ctx.bits, ctx.in_features), None, None, None, None, None
    return backward


torch.library.register_autograd("caesura::matmul_nbits", _backward_by(torch.ops.caesura.transposed_matmul_nbits),
                                setup_context=_keep, lib=_library)
torch.library.register_autograd("caesura::transposed_matmul_nbits", _backward_by(torch.ops.caesura.matmul_nbits),
                                setup_context=_keep, lib=_library)
