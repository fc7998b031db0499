// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/walks/strided_copy.h"

#include <algorithm>
#include <cassert>

#include "core/base/status_macros.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/walks/odometer.h"

namespace caesura {
namespace {

constexpr int64_t kTile = 16;

// Drops axes of extent 1 and merges neighbours that both sides walk as one. False when the box has
// no element.
bool Simplify(StridedBox& box) {
  size_t kept = 0;
  for (size_t a = 0; a < box.extents.size(); ++a) {
    const int64_t extent = box.extents[a], src = box.src_strides[a], dst = box.dst_strides[a];
    if (extent == 0) return false;
    if (extent == 1) continue;
    const bool merges = kept > 0 && box.src_strides[kept - 1] == src * extent &&
                        box.dst_strides[kept - 1] == dst * extent;
    if (!merges) box.extents[kept++] = 1;
    box.extents[kept - 1] *= extent;
    box.src_strides[kept - 1] = src;
    box.dst_strides[kept - 1] = dst;
  }
  for (auto* axes : {&box.extents, &box.src_strides, &box.dst_strides}) axes->resize(kept);
  return true;
}

void EraseAxis(StridedBox& box, size_t axis) {
  box.extents.erase(box.extents.begin() + axis);
  box.src_strides.erase(box.src_strides.begin() + axis);
  box.dst_strides.erase(box.dst_strides.begin() + axis);
}

struct TileSize {
  int64_t rows, columns;  // at most kTile each
};

// A tile is read row by row and written column by column through a buffer, so that each cache line
// of either side is touched once, whatever the strides.
template <typename T>
void TransposeTile(const T* src, int64_t src_step, T* dst, int64_t dst_step, TileSize size) {
  T buffer[kTile][kTile];
  for (int64_t r = 0; r < size.rows; ++r) {
    for (int64_t c = 0; c < size.columns; ++c) buffer[c][r] = src[r * src_step + c];
  }
  for (int64_t c = 0; c < size.columns; ++c) {
    for (int64_t r = 0; r < size.rows; ++r) dst[c * dst_step + r] = buffer[c][r];
  }
}

template <typename T>
void TransposeFullTile(const T* src, int64_t src_step, T* dst, int64_t dst_step) {
  TransposeTile(src, src_step, dst, dst_step, {kTile, kTile});
}

}  // namespace

Result<StridedCopy> StridedCopy::Make(const KernelInfo& info, DType dtype, StridedBox box) {
  StridedCopy out;
  out.threads_ = info.threads();
  if (Simplify(box)) {
    if (box.extents.size() > static_cast<size_t>(kMaxWalkAxes)) {
      return info.Refuse("moves a box of " + std::to_string(box.extents.size()) +
                         " axes, the kernel takes " + std::to_string(kMaxWalkAxes));
    }
    out.outer_ = std::move(box);
    out.Classify();
  }
  DispatchStorage(dtype, [&](auto tag) { out.run_ = &RunTyped<typename decltype(tag)::type>; });
  return out;
}

void StridedCopy::Classify() {
  if (outer_.extents.empty()) {  // a single element
    outer_.extents = {1};
    outer_.src_strides = outer_.dst_strides = {1};
  }
  count_ = outer_.extents.back();
  src_step_ = outer_.src_strides.back();
  dst_step_ = outer_.dst_strides.back();
  EraseAxis(outer_, outer_.extents.size() - 1);
  kind_ = Kind::kStrided;
  if (dst_step_ == 1 && src_step_ == 1) kind_ = Kind::kRows;
  if (dst_step_ == 1 && src_step_ == 0) kind_ = Kind::kFill;
  if (dst_step_ == 1 && src_step_ > 1) {
    for (size_t a = 0; a < outer_.extents.size(); ++a) {
      if (outer_.src_strides[a] != 1) continue;
      kind_ = Kind::kTiles;
      tile_count_ = outer_.extents[a];
      tile_dst_step_ = outer_.dst_strides[a];
      EraseAxis(outer_, a);
      break;
    }
  }
  cells_ = 1;
  for (int64_t extent : outer_.extents) cells_ *= extent;
}

template <typename T>
void StridedCopy::RunTyped(const StridedCopy& self, const void* src, void* dst) {
  const T* from = static_cast<const T*>(src) + self.outer_.src_offset;
  T* to = static_cast<T*>(dst) + self.outer_.dst_offset;
  if (self.kind_ == Kind::kEmpty) return;
  assert(from != to || (self.kind_ == Kind::kRows && self.cells_ == 1));
  if (self.kind_ == Kind::kTiles) {
    self.CopyTiles(from, to);
  } else if (self.kind_ == Kind::kRows && self.cells_ == 1) {
    ParallelFor(self.threads_, self.count_, 8 * kParallelGrain, [&](int64_t first, int64_t last) {
      std::copy(from + first, from + last, to + first);
    });
  } else {
    self.CopyRows(from, to);
  }
}

template <typename T>
void StridedCopy::CopyRows(const T* src, T* dst) const {
  const int64_t grain = std::max<int64_t>(1, kParallelGrain / count_);
  ParallelFor(threads_, cells_, grain, [&](int64_t first, int64_t last) {
    Odometer<2> walk(outer_.extents, {&outer_.src_strides, &outer_.dst_strides});
    walk.Seek(first);
    for (int64_t cell = first; cell < last; ++cell, walk.Next()) {
      const T* from = src + walk.offset(0);
      T* to = dst + walk.offset(1);
      if (kind_ == Kind::kRows) {
        std::copy(from, from + count_, to);
      } else if (kind_ == Kind::kFill) {
        std::fill(to, to + count_, *from);
      } else {
        for (int64_t i = 0; i < count_; ++i) to[i * dst_step_] = from[i * src_step_];
      }
    }
  });
}

template <typename T>
void StridedCopy::CopyTiles(const T* src, T* dst) const {
  const int64_t strips = (tile_count_ + kTile - 1) / kTile;
  const int64_t grain =
      std::max<int64_t>(1, kParallelGrain / (count_ * std::min(tile_count_, kTile)));
  ParallelFor(threads_, cells_ * strips, grain, [&](int64_t first, int64_t last) {
    Odometer<2> walk(outer_.extents, {&outer_.src_strides, &outer_.dst_strides});
    walk.Seek(first / strips);
    for (int64_t item = first; item < last; ++item) {
      const int64_t begin = item % strips * kTile;
      const int64_t columns = std::min(kTile, tile_count_ - begin);
      const T* from = src + walk.offset(0) + begin;
      T* to = dst + walk.offset(1) + begin * tile_dst_step_;
      for (int64_t i = 0; i < count_; i += kTile) {
        const int64_t rows = std::min(kTile, count_ - i);
        if (rows == kTile && columns == kTile) {
          TransposeFullTile(from + i * src_step_, src_step_, to + i, tile_dst_step_);
        } else {
          TransposeTile(from + i * src_step_, src_step_, to + i, tile_dst_step_, {rows, columns});
        }
      }
      if ((item + 1) % strips == 0) walk.Next();
    }
  });
}

void FillElements(DType dtype, const void* value, void* dst, int64_t count) {
  DispatchStorage(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* to = static_cast<T*>(dst);
    std::fill(to, to + count, value == nullptr ? T() : *static_cast<const T*>(value));
  });
}

void ParallelCopy(DType dtype, const void* src, void* dst, int64_t count, int threads) {
  DispatchStorage(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = static_cast<const T*>(src);
    T* to = static_cast<T*>(dst);
    ParallelFor(threads, count, 8 * kParallelGrain, [&](int64_t first, int64_t last) {
      std::copy(from + first, from + last, to + first);
    });
  });
}

Status SetMoves(KernelInfo& info, const Moves& moves) {
  struct Copy {
    int input, output;
    StridedCopy copy;
  };
  std::vector<Copy> copies;
  copies.reserve(moves.size());
  for (const Move& move : moves) {
    ASSIGN_OR_RETURN(StridedCopy copy,
                     StridedCopy::Make(info, info.InputDType(move.input), move.box));
    copies.push_back({move.input, move.output, std::move(copy)});
  }
  info.SetCompute([copies = std::move(copies)](KernelContext& context) {
    for (const Copy& move : copies) {
      void* to = context.Output<void>(move.output);
      if (to != nullptr) move.copy.Run(context.Input<void>(move.input), to);
    }
  });
  return {};
}

}  // namespace caesura
