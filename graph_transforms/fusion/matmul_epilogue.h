// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_GRAPH_TRANSFORMS_FUSION_MATMUL_EPILOGUE_H_
#define CAESURA_GRAPH_TRANSFORMS_FUSION_MATMUL_EPILOGUE_H_

#include <memory>

#include "core/graph/pass.h"

namespace caesura {

// An Add or a Cast that alone reads a product becomes part of it, while the product's tiles are in
// cache:
//   Add(MatMul(A, B), row)      -> FusedMatMul(A, B, row)
//   Add(MatMul(A, B), matrix)   -> FusedMatMul(A, B, , matrix)     of the product's own shape
//   Cast(MatMul(A, B), float32) -> FusedMatMul(A, B) of dtype float32, where A and B are of half
// and all of them, one after the other. Where types do not prove the shapes, nothing changes.
std::shared_ptr<Pass> MakeMatMulEpiloguePass();

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_FUSION_MATMUL_EPILOGUE_H_
