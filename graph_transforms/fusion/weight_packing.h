// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_GRAPH_TRANSFORMS_FUSION_WEIGHT_PACKING_H_
#define CAESURA_GRAPH_TRANSFORMS_FUSION_WEIGHT_PACKING_H_

#include <memory>

#include "core/graph/pass.h"

namespace caesura {

// Large constant float32 weights of products are put into the order in which the CPU's kernel reads
// them, once, where it would do so in each run: all of what a product of few rows costs. The
// initializer keeps its type and its size, its elements lie in another order, and only the op
// PackedMatMul reads it:
//   MatMul(A, W), FusedMatMul(A, W, ...)            -> PackedMatMul(A, packed W, ...)
//   Gemm(A, W, row), alpha = beta = 1, A as it is   -> PackedMatMul(A, packed W, row)
// Weights that nobody else reads are gone afterwards. For graphs that only the CPU provider runs,
// and nobody writes.
std::shared_ptr<Pass> MakeWeightPackingPass();

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_FUSION_WEIGHT_PACKING_H_
