// SPDX-License-Identifier: Apache-2.0
// Ops that only move elements, as boxes between strided layouts: Transpose, Expand, Tile, Concat,
// Split, Slice, Reshape and their like. A device needs one kernel for all of them.
#ifndef CAESURA_CORE_KERNELS_WALKS_MOVES_H_
#define CAESURA_CORE_KERNELS_WALKS_MOVES_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/kernels/kernel.h"

namespace caesura {

// Element [i0, i1, ...] moves from src_offset + sum(i * src_strides) to dst_offset + sum(i *
// dst_strides). Strides are in elements; a source stride may be 0 (repetition) or negative.
struct StridedBox {
  std::vector<int64_t> extents;
  std::vector<int64_t> src_strides;
  std::vector<int64_t> dst_strides;
  int64_t src_offset = 0;
  int64_t dst_offset = 0;
};

// The move of the same elements back.
inline StridedBox Reversed(StridedBox box) {
  std::swap(box.src_strides, box.dst_strides);
  std::swap(box.src_offset, box.dst_offset);
  return box;
}

// The box that permutes a contiguous tensor of `shape`: axis a of the contiguous result is axis
// perm[a] of the source.
StridedBox PermutingBox(const Shape& shape, const std::vector<int64_t>& perm);

// From one input into one output of a node.
struct Move {
  int input;
  int output;
  StridedBox box;
};
using Moves = std::vector<Move>;

// Each sets the node's outputs and, where there is one, the way in which they are views; together
// the moves write every element of each output once. They fail as the op's factory does.
// Transpose, Concat, Split and the last four take strided inputs.
Result<Moves> TransposeMoves(KernelInfo& info);
Result<Moves> ExpandMoves(KernelInfo& info);
Result<Moves> TileMoves(KernelInfo& info);
Result<Moves> DepthToSpaceMoves(KernelInfo& info);
Result<Moves> SpaceToDepthMoves(KernelInfo& info);
Result<Moves> ConcatMoves(KernelInfo& info);
// Sets only Concat's output; returns the axis.
Result<int> SetConcatOutput(KernelInfo& info);
Result<Moves> SplitMoves(KernelInfo& info);
Result<Moves> SliceMoves(KernelInfo& info);
Result<Moves> ReshapeMoves(KernelInfo& info);
Result<Moves> FlattenMoves(KernelInfo& info);
Result<Moves> DetachMoves(KernelInfo& info);
Result<Moves> SqueezeMoves(KernelInfo& info);
Result<Moves> UnsqueezeMoves(KernelInfo& info);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WALKS_MOVES_H_
