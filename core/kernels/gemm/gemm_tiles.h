// SPDX-License-Identifier: Apache-2.0
// float32 products too small for a oneDNN call: blocks in registers, read where they lie. B is
// copied only where its rows are not contiguous, or end inside a vector.
#ifndef CAESURA_CORE_KERNELS_GEMM_GEMM_TILES_H_
#define CAESURA_CORE_KERNELS_GEMM_GEMM_TILES_H_

#include "core/kernels/gemm/gemm.h"

namespace caesura {

// Rows [first, last) of one product without batch dims. `bias`, `addend`: as GemmSpec says, or
// null.
void MultiplyFloatRows(const GemmSpec& s, int64_t first, int64_t last, const float* a,
                       const float* b, float* c, const float* bias, const float* addend);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_GEMM_GEMM_TILES_H_
