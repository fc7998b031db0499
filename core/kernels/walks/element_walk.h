// SPDX-License-Identifier: Apache-2.0
// What the gathers and scatters share: indices that are checked before they are followed, and the
// walk over an index tensor of GatherElements and ScatterElements.
#ifndef CAESURA_CORE_KERNELS_WALKS_ELEMENT_WALK_H_
#define CAESURA_CORE_KERNELS_WALKS_ELEMENT_WALK_H_

#include <string>
#include <vector>

#include "core/kernels/kernel.h"

namespace caesura {

inline constexpr DTypeSet kIndexTypes = {DType::kInt32, DType::kInt64};

inline Status IndexError(const std::string& label, int64_t index, int64_t dim) {
  return InvalidArgument(label + " indices: expected values in [" + std::to_string(-dim) + ", " +
                         std::to_string(dim) + "), got " + std::to_string(index));
}

// Every index must be in [-dim, dim).
template <typename I>
Status CheckIndices(const I* indices, int64_t count, int64_t dim, const std::string& label) {
  bool bad = false;
  for (int64_t i = 0; i < count; ++i) bad |= (indices[i] < -dim) | (indices[i] >= dim);
  if (!bad) return {};
  for (int64_t i = 0; i < count; ++i) {
    if (indices[i] < -dim || indices[i] >= dim) return IndexError(label, indices[i], dim);
  }
  return {};
}

inline int64_t Wrap(int64_t index, int64_t dim) { return index < 0 ? index + dim : index; }

// `count` tuples of indices, one index for each of `dims`.
inline Status CheckTuples(const int64_t* indices, int64_t count, const std::vector<int64_t>& dims,
                          const std::string& label) {
  if (dims.empty()) return {};
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t dim : dims) {
      if (*indices < -dim || *indices >= dim) return IndexError(label, *indices, dim);
      ++indices;
    }
  }
  return {};
}

// Element j of row r of the indices stands for data[base(r) + index * axis_step + j * column_step].
struct ElementWalk {
  std::vector<int64_t> extents;       // of the indices, without their last axis
  std::vector<int64_t> data_strides;  // likewise; 0 for `axis`
  int64_t rows = 1, columns = 1;
  int64_t axis_dim = 1, axis_step = 1, column_step = 0;
  int64_t groups =
      1;  // rows of different groups reach disjoint parts of the data: rows / groups each
};

// `indices` and `data` are inputs by number. Checks ranks, dims and the index type.
Result<ElementWalk> MakeElementWalk(const KernelInfo& info, int data, int indices);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WALKS_ELEMENT_WALK_H_
