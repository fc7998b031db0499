// SPDX-License-Identifier: Apache-2.0
// A copy in which each axis has a table of source indices: out[i, j, ...] = in[map0[i], map1[j],
// ...]. The mover of Pad (all modes, negative pads included) and Resize to the nearest.
#ifndef CAESURA_CORE_KERNELS_WALKS_MAPPED_COPY_H_
#define CAESURA_CORE_KERNELS_WALKS_MAPPED_COPY_H_

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/kernels/kernel.h"

namespace caesura {

// For each index of the output's axis the index of the source's, or kFillIndex for "the fill
// value".
using AxisMap = std::vector<int64_t>;
inline constexpr int64_t kFillIndex = -1;

// Thread safety: Run may be called from any thread at once.
class MappedCopy {
 public:
  // REQUIRES: one map an axis of `source`, with indices below its extent (negative ones: the fill).
  static MappedCopy Make(const KernelInfo& info, DType dtype, const Shape& source,
                         std::vector<AxisMap> maps);

  // `fill` points to one element; null means zero or the empty string.
  void Run(const void* src, void* dst, const void* fill) const { run_(*this, src, dst, fill); }

 private:
  struct Axis {
    AxisMap map;  // empty: the identity
    int64_t count;
    int64_t src_stride;
  };
  void Append(AxisMap map, int64_t dim, int64_t src_stride);
  void FindRun();
  template <typename T>
  static void RunTyped(const MappedCopy& self, const void* src, void* dst, const void* fill);
  template <typename T>
  void CopyRow(const T* src, T* dst, const T& fill) const;
  template <typename T>
  void CopyByTable(const T* src, T* dst, const T& fill, int64_t first, int64_t last) const;

  std::vector<Axis> outer_;
  int64_t rows_ = 1;       // product of outer_'s counts
  AxisMap row_map_;        // of the last axis that is not the identity
  int64_t run_begin_ = 0;  // row_map_[run_begin_, run_end_) ascends by one: copied as a whole
  int64_t run_end_ = 0;
  int64_t block_ = 1;  // elements of each entry of row_map_
  int threads_ = 1;
  void (*run_)(const MappedCopy&, const void*, void*, const void*) = nullptr;
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WALKS_MAPPED_COPY_H_
