// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/walks/mapped_copy.h"

#include <algorithm>
#include <cassert>

#include "core/kernels/simd/parallel.h"

namespace caesura {
namespace {

bool IsIdentity(const AxisMap& map, int64_t dim) {
  if (static_cast<int64_t>(map.size()) != dim) return false;
  for (int64_t i = 0; i < dim; ++i) {
    if (map[i] != i) return false;
  }
  return true;
}

}  // namespace

MappedCopy MappedCopy::Make(const KernelInfo& info, DType dtype, const Shape& source,
                            std::vector<AxisMap> maps) {
  assert(static_cast<int>(maps.size()) == source.rank());
  for (int a = 0; a < source.rank(); ++a)
    assert(std::all_of(maps[a].begin(), maps[a].end(), [&](int64_t i) { return i < source[a]; }));
  MappedCopy out;
  out.threads_ = info.threads();
  const std::vector<int64_t> strides = source.Strides();
  int last = source.rank() - 1;
  while (last >= 0 && IsIdentity(maps[last], source[last])) out.block_ *= source[last--];
  for (int a = 0; a < last; ++a) out.Append(std::move(maps[a]), source[a], strides[a]);
  out.row_map_ = last < 0 ? AxisMap{0} : std::move(maps[last]);
  for (const Axis& axis : out.outer_) out.rows_ *= axis.count;
  out.FindRun();
  DispatchStorage(dtype, [&](auto tag) { out.run_ = &RunTyped<typename decltype(tag)::type>; });
  return out;
}

void MappedCopy::Append(AxisMap map, int64_t dim, int64_t src_stride) {
  const int64_t count = static_cast<int64_t>(map.size());
  if (!IsIdentity(map, dim)) {
    outer_.push_back({std::move(map), count, src_stride});
  } else if (!outer_.empty() && outer_.back().map.empty()) {
    outer_.back().count *= dim;
    outer_.back().src_stride = src_stride;
  } else {
    outer_.push_back({{}, dim, src_stride});
  }
}

void MappedCopy::FindRun() {
  const int64_t count = static_cast<int64_t>(row_map_.size());
  for (int64_t begin = 0; begin < count;) {
    int64_t end = begin + 1;
    while (end < count && row_map_[begin] >= 0 && row_map_[end] == row_map_[end - 1] + 1) ++end;
    if (row_map_[begin] >= 0 && end - begin > run_end_ - run_begin_) {
      run_begin_ = begin;
      run_end_ = end;
    }
    begin = end;
  }
}

template <typename T>
void MappedCopy::CopyByTable(const T* src, T* dst, const T& fill, int64_t first,
                             int64_t last) const {
  if (block_ == 1) {
    for (int64_t i = first; i < last; ++i) dst[i] = row_map_[i] < 0 ? fill : src[row_map_[i]];
    return;
  }
  for (int64_t i = first; i < last; ++i) {
    T* to = dst + i * block_;
    if (row_map_[i] < 0) {
      std::fill(to, to + block_, fill);
    } else {
      const T* from = src + row_map_[i] * block_;
      std::copy(from, from + block_, to);
    }
  }
}

template <typename T>
void MappedCopy::CopyRow(const T* src, T* dst, const T& fill) const {
  CopyByTable(src, dst, fill, 0, run_begin_);
  if (run_end_ > run_begin_) {
    const T* from = src + row_map_[run_begin_] * block_;
    std::copy(from, from + (run_end_ - run_begin_) * block_, dst + run_begin_ * block_);
  }
  CopyByTable(src, dst, fill, run_end_, static_cast<int64_t>(row_map_.size()));
}

template <typename T>
void MappedCopy::RunTyped(const MappedCopy& self, const void* src, void* dst, const void* fill) {
  const T value = fill == nullptr ? T() : *static_cast<const T*>(fill);
  const int64_t row = static_cast<int64_t>(self.row_map_.size()) * self.block_;
  if (row == 0) return;
  const int64_t grain = std::max<int64_t>(1, kParallelGrain / row);
  ParallelFor(self.threads_, self.rows_, grain, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      T* to = static_cast<T*>(dst) + r * row;
      int64_t offset = 0, rest = r;
      bool filled = false;
      for (size_t a = self.outer_.size(); a-- > 0;) {
        const Axis& axis = self.outer_[a];
        const int64_t index = rest % axis.count;
        rest /= axis.count;
        const int64_t from = axis.map.empty() ? index : axis.map[index];
        filled = filled || from < 0;
        offset += from * axis.src_stride;
      }
      if (filled) {
        std::fill(to, to + row, value);
      } else {
        self.CopyRow(static_cast<const T*>(src) + offset, to, value);
      }
    }
  });
}

}  // namespace caesura
