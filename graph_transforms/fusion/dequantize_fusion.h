// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_GRAPH_TRANSFORMS_FUSION_DEQUANTIZE_FUSION_H_
#define CAESURA_GRAPH_TRANSFORMS_FUSION_DEQUANTIZE_FUSION_H_

#include <memory>
#include <string>
#include <unordered_set>

#include "core/graph/pass.h"

namespace caesura {

// Products read constant weights of 2, 4 or 8 bits in blocks as they are, where they would be
// unpacked as a whole:
//   MatMul(A, DequantizeLinear(Q, scale, zero))        -> MatMulNBits(A, packed Q, scale, zero)
//   Gemm(A, DequantizeLinear(...), row), alpha = beta = 1   -> MatMulNBits(..., row)
// also with a Transpose between. Weights whose blocks do not lie along the terms of the sums become
// TransposedMatMulNBits. Blocks have a size that MatMulNBits knows, a power of two from 16 on;
// scales have the dtype of A, and are none of `parameters`. For forward graphs, before they are
// differentiated.
std::shared_ptr<Pass> MakeDequantizeFusionPass(std::unordered_set<std::string> parameters);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_FUSION_DEQUANTIZE_FUSION_H_
