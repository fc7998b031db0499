// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/walks/row_grid.h"

#include <algorithm>

namespace caesura {

Result<std::vector<int64_t>> RowDimsOf(const KernelInfo& info) {
  int rank = 0;
  for (int i = 0; i < info.input_count(); ++i) {
    if (info.HasInput(i)) rank = std::max(rank, info.InputShape(i).rank());
  }
  if (rank < 2) return info.Refuse("the inputs have no rows");
  std::vector<int64_t> dims(rank - 1, 1);
  for (int i = 0; i < info.input_count(); ++i) {
    if (!info.HasInput(i)) continue;
    const Shape& shape = info.InputShape(i);
    if (shape.elements() == 0) return info.Refuse("an input is empty");
    const int lead = rank - shape.rank();
    for (int d = 0; d < shape.rank() - 1; ++d) {
      int64_t& dim = dims[lead + d];
      if (shape[d] != 1 && dim != 1 && dim != shape[d])
        return info.Refuse("the inputs differ in their rows");
      dim = std::max(dim, shape[d]);
    }
  }
  return dims;
}

bool HasRows(const std::vector<int64_t>& row_dims, const Shape& shape) {
  const int rank = static_cast<int>(row_dims.size()) + 1;
  const bool one_row =
      std::all_of(row_dims.begin(), row_dims.end(), [](int64_t dim) { return dim == 1; });
  if (one_row) return shape.rank() == rank;
  for (int d = 0; d < shape.rank() - 1; ++d) {
    if (shape[d] != 1 && shape[d] == row_dims[rank - shape.rank() + d]) return true;
  }
  return false;
}

std::vector<int64_t> RowStrides(const std::vector<int64_t>& row_dims, const Shape& shape) {
  const std::vector<int64_t> dense = shape.Strides();
  const int rank = static_cast<int>(row_dims.size()), lead = rank + 1 - shape.rank();
  std::vector<int64_t> out(rank, 0);
  for (int d = std::max(lead, 0); d < rank; ++d) {
    if (shape[d - lead] != 1) out[d] = dense[d - lead];
  }
  return out;
}

}  // namespace caesura
