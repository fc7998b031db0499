// SPDX-License-Identifier: Apache-2.0
// Sizes, strides and options of a matrix product: C = alpha * A B + bias + addend, or C += alpha *
// A B, over batches.
#ifndef CAESURA_CORE_KERNELS_GEMM_GEMM_SPEC_H_
#define CAESURA_CORE_KERNELS_GEMM_GEMM_SPEC_H_

#include <cstdint>
#include <vector>

#include "core/tensor/dtype.h"

namespace caesura {

// Distances between neighbours, in elements.
struct MatrixStrides {
  int64_t row = 0, col = 1;
};
inline MatrixStrides RowMajor(int64_t columns) { return {columns, 1}; }
inline MatrixStrides ColumnMajor(int64_t rows) { return {1, rows}; }

struct GemmSpec {
  DType dtype = DType::kUndefined;    // of A, B and the bias
  DType c_dtype = DType::kUndefined;  // of C and the addend: undefined for that of A, or float32
                                      // where A is of half
  int64_t m = 0, n = 0, k = 0;
  MatrixStrides a, b, c;                             // c.col is 1
  int64_t a_offset = 0, b_offset = 0, c_offset = 0;  // of the first elements
  // Batch dims, outermost first, and the strides of each matrix along them (0: shared).
  std::vector<int64_t> batch = {}, a_batch = {}, b_batch = {}, c_batch = {};
  double alpha = 1;
  bool accumulate = false;  // adds to C
  bool bias = false;        // adds a row of n; alpha is 1
  bool addend = false;      // adds matrices that lie as C does, in other memory
  bool packed_b = false;    // B is packed (PackDnnlWeights): float32, and one B for all
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_GEMM_GEMM_SPEC_H_
