// SPDX-License-Identifier: Apache-2.0
// Products of float32 and float64 in blocks that stay in cache, at the rate of AVX2's fused
// multiply-adds. The second factor is packed, and so is the first where its rows lie unfavourably.
// The sum of each block of terms is added to C: an element's bits depend on the blocks of terms and
// on nothing else.
#ifndef CAESURA_CORE_KERNELS_GEMM_GEMM_BLOCKS_H_
#define CAESURA_CORE_KERNELS_GEMM_GEMM_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/gemm/gemm_spec.h"

namespace caesura {

// The work is `batches` x `row_parts` x `column_parts` items, which threads share.
struct GemmBlocks {
  int64_t terms = 1;              // of a block, at most
  int64_t rows = 1, columns = 1;  // likewise: what is kept in cache
  int64_t row_parts = 1, column_parts = 1;
  int64_t items = 0;
  size_t scratch = 0;  // elements that each thread needs

  // For `batches` products as `s` says, with sums in blocks of `terms`. REQUIRES: m, n, k > 0.
  static GemmBlocks Plan(const GemmSpec& s, int64_t batches, int64_t terms, int threads);
};

// One part of one product: `item` modulo row_parts x column_parts. The pointers are the product's,
// `scratch` is aligned to 64 bytes. REQUIRES: AVX2.
// T: float or double.
template <typename T>
void MultiplyGemmBlocks(const GemmSpec& s, const GemmBlocks& blocks, int64_t item, const T* a,
                        const T* b, T* c, const T* bias, const T* addend, T* scratch);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_GEMM_GEMM_BLOCKS_H_
