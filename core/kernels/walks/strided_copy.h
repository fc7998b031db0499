// SPDX-License-Identifier: Apache-2.0
// The one mover of Transpose, Slice, Expand, Tile, Concat, Split and their gradients: a copy of
// a box of elements between two strided layouts, decided once and run in each step.
#ifndef CAESURA_CORE_KERNELS_WALKS_STRIDED_COPY_H_
#define CAESURA_CORE_KERNELS_WALKS_STRIDED_COPY_H_

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/kernels/walks/moves.h"

namespace caesura {

// Thread safety: Run may be called from any thread at once.
class StridedCopy {
 public:
  // Fails when the box still has too many axes after neighbours are merged.
  static Result<StridedCopy> Make(const KernelInfo& info, DType dtype, StridedBox box);

  // REQUIRES: the memory does not overlap, unless both are the same contiguous layout (asserted of
  // the first elements).
  void Run(const void* src, void* dst) const { run_(*this, src, dst); }

 private:
  enum class Kind { kEmpty, kRows, kFill, kTiles, kStrided };
  void Classify();
  template <typename T>
  static void RunTyped(const StridedCopy& self, const void* src, void* dst);
  template <typename T>
  void CopyRows(const T* src, T* dst) const;
  template <typename T>
  void CopyTiles(const T* src, T* dst) const;

  Kind kind_ = Kind::kEmpty;
  StridedBox
      outer_;  // all axes but the inner one (and, for kTiles, but the tile axis); offsets included
  int64_t cells_ = 0;                    // of outer_
  int64_t count_ = 0;                    // of the inner axis
  int64_t src_step_ = 0, dst_step_ = 0;  // strides of the inner axis
  int64_t tile_count_ = 0;               // kTiles: the axis along which the source is contiguous
  int64_t tile_dst_step_ = 0;
  int threads_ = 1;
  void (*run_)(const StridedCopy&, const void*, void*) = nullptr;
};

// Settles the node as these moves, one after the other.
Status SetMoves(KernelInfo& info, const Moves& moves);

// The factory of an op that only moves elements.
template <Result<Moves> (*moves_of)(KernelInfo&)>
Status CreateMoves(KernelInfo& info) {
  const Result<Moves> moves = moves_of(info);
  return moves.ok() ? SetMoves(info, *moves) : moves.status();
}

// Writes `count` copies of the element at `value` (null: zero, or the empty string).
void FillElements(DType dtype, const void* value, void* dst, int64_t count);

// CopyElements split over threads.
void ParallelCopy(DType dtype, const void* src, void* dst, int64_t count, int threads);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WALKS_STRIDED_COPY_H_
