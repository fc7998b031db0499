// SPDX-License-Identifier: Apache-2.0
// Walks the cells of a box in row-major order and carries N offsets along, so that inner loops need
// no division.
#ifndef CAESURA_CORE_KERNELS_WALKS_ODOMETER_H_
#define CAESURA_CORE_KERNELS_WALKS_ODOMETER_H_

#include <array>
#include <cassert>
#include <cstdint>
#include <vector>

namespace caesura {

// The most axes that a walk may have; factories refuse tensors beyond it.
inline constexpr int kMaxWalkAxes = 32;

// The walk reads the vectors where they are, which must stay there until its end.
template <int N>
class Odometer {
 public:
  // REQUIRES: each vector of strides has the size of `extents`, at most kMaxWalkAxes.
  Odometer(const std::vector<int64_t>& extents, std::array<const std::vector<int64_t>*, N> strides)
      : extents_(extents.data()), rank_(static_cast<int>(extents.size())) {
    assert(rank_ <= kMaxWalkAxes);
    for (int k = 0; k < N; ++k) {
      assert(strides[k]->size() == extents.size());
      strides_[k] = strides[k]->data();
    }
    for (int a = 0; a < rank_; ++a) index_[a] = 0;
  }

  // Goes to the cell of the given row-major number. REQUIRES: no extent is 0.
  void Seek(int64_t cell) {
    offsets_.fill(0);
    for (int a = rank_ - 1; a >= 0; --a) {
      assert(extents_[a] > 0);
      index_[a] = cell % extents_[a];
      cell /= extents_[a];
      for (int k = 0; k < N; ++k) offsets_[k] += index_[a] * strides_[k][a];
    }
  }

  void Next() {
    for (int a = rank_ - 1; a >= 0; --a) {
      for (int k = 0; k < N; ++k) offsets_[k] += strides_[k][a];
      if (++index_[a] < extents_[a]) return;
      for (int k = 0; k < N; ++k) offsets_[k] -= extents_[a] * strides_[k][a];
      index_[a] = 0;
    }
  }

  int64_t offset(int k) const { return offsets_[k]; }
  int64_t index(int axis) const { return index_[axis]; }

 private:
  const int64_t* extents_;
  int rank_;
  std::array<const int64_t*, N> strides_;
  std::array<int64_t, N> offsets_ = {};
  int64_t index_[kMaxWalkAxes];
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WALKS_ODOMETER_H_
