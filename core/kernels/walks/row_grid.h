// SPDX-License-Identifier: Apache-2.0
// The rows of a group of tensors that broadcast against each other: a row is what the last dim
// holds, all other dims count rows.
#ifndef CAESURA_CORE_KERNELS_WALKS_ROW_GRID_H_
#define CAESURA_CORE_KERNELS_WALKS_ROW_GRID_H_

#include <cstdint>
#include <vector>

#include "core/kernels/kernel.h"

namespace caesura {

// The dims that count rows. The input with the most dims says how many there are; those of size
// one in it come from another input. kDeclined where the inputs have no rows, or differ in them.
Result<std::vector<int64_t>> RowDimsOf(const KernelInfo& info);

// True if a tensor of this shape has one row of its own for each, or each of some, of the rows;
// false if all rows share it.
bool HasRows(const std::vector<int64_t>& row_dims, const Shape& shape);

// In elements, along the row dims; 0 where its rows repeat.
std::vector<int64_t> RowStrides(const std::vector<int64_t>& row_dims, const Shape& shape);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WALKS_ROW_GRID_H_
