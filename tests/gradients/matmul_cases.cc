// SPDX-License-Identifier: Apache-2.0
#include "tests/gradients/gradient_case.h"

namespace caesura {

std::vector<GradientCase> MatMulCases() {
  return {
      {"MatMul", "double[2,3] a, double[3,4] b", "y = MatMul(a, b)"},
      {"MatMulDot", "double[3] a, double[3] b", "y = MatMul(a, b)"},
      {"MatMulVectorLeft", "double[3] a, double[2,3,4] b", "y = MatMul(a, b)"},
      {"MatMulVectorLeft2", "double[3] a, double[3,4] b", "y = MatMul(a, b)"},
      {"MatMulVectorRight", "double[2,4,3] a, double[3] b", "y = MatMul(a, b)"},
      {"MatMulWeights", "double[2,5,3] a, double[3,4] b", "y = MatMul(a, b)"},
      {"MatMulLeftMatrix", "double[5,3] a, double[2,3,4] b", "y = MatMul(a, b)"},
      {"MatMulBatch", "double[2,5,3] a, double[2,3,4] b", "y = MatMul(a, b)"},
      {"MatMulBroadcast", "double[2,1,5,3] a, double[4,3,2] b", "y = MatMul(a, b)"},
      {"MatMulEmptyBatch", "double[0,5,3] a, double[3,4] b", "y = MatMul(a, b)"},
      {"MatMulEmptySum", "double[2,0] a, double[0,4] b", "y = MatMul(a, b)"},
      {.name = "MatMulSymbols", .inputs = "double[N,5,3] a, double[M,3,4] b", .body = "y = MatMul(a, b)",
       .dims = {{"N", 2}, {"M", 1}}},
      {"Gemm", "double[2,3] a, double[3,4] b, double[4] c", "y = Gemm<alpha = 0.5, beta = 2.0>(a, b, c)"},
      {"GemmTransposed", "double[3,2] a, double[4,3] b, double[2,1] c", "y = Gemm<transA = 1, transB = 1>(a, b, c)"},
      {"GemmTransposedB", "double[2,3] a, double[4,3] b", "y = Gemm<transB = 1>(a, b)"},
      {"GemmTransposedA", "double[3,2] a, double[3,4] b, double[] c", "y = Gemm<transA = 1>(a, b, c)"},
      {"GemmFullC", "double[2,3] a, double[3,4] b, double[2,4] c", "y = Gemm(a, b, c)"},
      {"FusedMatMulNT", "double[2,3] a, double[4,3] b", "y = ai.caesura.FusedMatMul<transB = 1>(a, b)"},
      {"FusedMatMulTN", "double[5,3,2] a, double[5,3,4] b", "y = ai.caesura.FusedMatMul<transA = 1>(a, b)"},
      {"FusedMatMulTT", "double[3,2] a, double[4,3] b", "y = ai.caesura.FusedMatMul<transA = 1, transB = 1>(a, b)"},
      {"Det", "double[2,3,3] x", "y = Det(x)"},
      {"EinsumMatMul", "double[2,3] a, double[3,4] b", "y = Einsum<equation = \"ij,jk->ik\">(a, b)"},
      {"EinsumImplicit", "double[2,3] a, double[3,4] b", "y = Einsum<equation = \"ij, jk\">(a, b)"},
      {"EinsumSum", "double[2,3] a", "y = Einsum<equation = \"ij->i\">(a)"},
      {"EinsumSumAll", "double[2,3] a", "y = Einsum<equation = \"ij->\">(a)"},
      {"EinsumTranspose", "double[2,3] a", "y = Einsum<equation = \"ij->ji\">(a)"},
      {"EinsumDiagonal", "double[3,3] a", "y = Einsum<equation = \"ii->i\">(a)"},
      {"EinsumTrace", "double[3,3] a", "y = Einsum<equation = \"ii\">(a)"},
      {"EinsumOuter", "double[2] a, double[3] b", "y = Einsum<equation = \"i,j->ij\">(a, b)"},
      {"EinsumBatch", "double[2,3,4] a, double[2,4,2] b", "y = Einsum<equation = \"bij,bjk->bik\">(a, b)"},
      {"EinsumEllipsis", "double[2,3,4] a, double[4,2] b", "y = Einsum<equation = \"...ij,jk->...ik\">(a, b)"},
      {"EinsumEllipsisBroadcast", "double[2,1,3,4] a, double[1,5,4,2] b",
       "y = Einsum<equation = \"...ij,...jk->...ik\">(a, b)"},
      {"EinsumThree", "double[2,3] a, double[3,4] b, double[4] c", "y = Einsum<equation = \"ij,jk,k->i\">(a, b, c)"},
      {"EinsumAttention", "double[2,3,2,4] q, double[2,5,2,4] k", "y = Einsum<equation = \"bqhd,bkhd->bhqk\">(q, k)"},
      {"EinsumSummedAway", "double[2,3] a, double[2,4] b", "y = Einsum<equation = \"ij,ik->i\">(a, b)"},
  };
}

}  // namespace caesura
