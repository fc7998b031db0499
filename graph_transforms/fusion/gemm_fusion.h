// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_GRAPH_TRANSFORMS_FUSION_GEMM_FUSION_H_
#define CAESURA_GRAPH_TRANSFORMS_FUSION_GEMM_FUSION_H_

#include <memory>

#include "core/graph/pass.h"

namespace caesura {

// A product of two matrices takes over what stands around it, as ONNX's Gemm:
//   MatMul(A, Transpose(W))       -> Gemm(A, W), transB = 1
//   Transpose(MatMul(A, B))       -> Gemm(B, A), transA = 1, transB = 1
//   Mul(MatMul(A, B), constant)   -> Gemm(A, B), alpha = constant
//   Add(MatMul(A, B), C)          -> Gemm(A, B, C)   C a row, or of the product's own shape
// and all of them, one after the other, of Gemm as of MatMul. The three in the end only where
// nothing else reads the product. For models that other runtimes run: our own kernels have
// FusedMatMul (matmul_epilogue.h). Where types do not prove the shapes, nothing changes.
std::shared_ptr<Pass> MakeGemmFusionPass();

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_FUSION_GEMM_FUSION_H_
