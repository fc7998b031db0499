// SPDX-License-Identifier: Apache-2.0
#include "tests/gradients/gradient_case.h"

namespace caesura {
namespace {

// W [3, 20] in 4 bits, two blocks a row; the last one is ragged.
GradientCase OfNBits(const std::string& name, const std::string& inputs, const std::string& body) {
  std::vector<double> bytes;
  for (int i = 0; i < 48; ++i) bytes.push_back(i * 37 % 256);
  return {.name = name,
          .inputs = inputs + ", uint8[3,2,8] q",
          .body = body,
          .feeds = {{"q", bytes}},
          .initializers =
              "<double[3,2] s = {0.25, 0.125, 0.0625, 0.1875, 0.25, 0.03125}, "
              "uint8[3,1] z = {52, 169, 240}>",
          .no_double = "the op knows no double"};
}

}  // namespace

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
      {.name = "MatMulSymbols",
       .inputs = "double[N,5,3] a, double[M,3,4] b",
       .body = "y = MatMul(a, b)",
       .dims = {{"N", 2}, {"M", 1}}},
      {"Gemm", "double[2,3] a, double[3,4] b, double[4] c",
       "y = Gemm<alpha = 0.5, beta = 2.0>(a, b, c)"},
      {"GemmTransposed", "double[3,2] a, double[4,3] b, double[2,1] c",
       "y = Gemm<transA = 1, transB = 1>(a, b, c)"},
      {"GemmTransposedB", "double[2,3] a, double[4,3] b", "y = Gemm<transB = 1>(a, b)"},
      {"GemmTransposedA", "double[3,2] a, double[3,4] b, double[] c",
       "y = Gemm<transA = 1>(a, b, c)"},
      {"GemmFullC", "double[2,3] a, double[3,4] b, double[2,4] c", "y = Gemm(a, b, c)"},
      {"FusedMatMulNT", "double[2,3] a, double[4,3] b",
       "y = ai.caesura.FusedMatMul<transB = 1>(a, b)"},
      {"FusedMatMulTN", "double[5,3,2] a, double[5,3,4] b",
       "y = ai.caesura.FusedMatMul<transA = 1>(a, b)"},
      {"FusedMatMulTT", "double[3,2] a, double[4,3] b",
       "y = ai.caesura.FusedMatMul<transA = 1, transB = 1>(a, b)"},
      OfNBits("MatMulNBits", "double[2,4,20] a",
              "y = com.microsoft.MatMulNBits<K = 20, N = 3, block_size = 16>(a, q, s)"),
      OfNBits("MatMulNBitsBias", "double[2,20] a, double[3] b",
              "y = com.microsoft.MatMulNBits<K = 20, N = 3, block_size = 16>(a, q, s, z, , b)"),
      OfNBits("TransposedMatMulNBits", "double[2,3] a, double[20] b",
              "y = ai.caesura.TransposedMatMulNBits<K = 20, N = 3, bits = 4, block_size = 16>(a, "
              "q, s, z, , b)"),
      {"Det", "double[2,3,3] x", "y = Det(x)"},
      {"EinsumMatMul", "double[2,3] a, double[3,4] b",
       "y = Einsum<equation = \"ij,jk->ik\">(a, b)"},
      {"EinsumImplicit", "double[2,3] a, double[3,4] b", "y = Einsum<equation = \"ij, jk\">(a, b)"},
      {"EinsumSum", "double[2,3] a", "y = Einsum<equation = \"ij->i\">(a)"},
      {"EinsumSumAll", "double[2,3] a", "y = Einsum<equation = \"ij->\">(a)"},
      {"EinsumTranspose", "double[2,3] a", "y = Einsum<equation = \"ij->ji\">(a)"},
      {"EinsumDiagonal", "double[3,3] a", "y = Einsum<equation = \"ii->i\">(a)"},
      {"EinsumTrace", "double[3,3] a", "y = Einsum<equation = \"ii\">(a)"},
      {"EinsumOuter", "double[2] a, double[3] b", "y = Einsum<equation = \"i,j->ij\">(a, b)"},
      {"EinsumBatch", "double[2,3,4] a, double[2,4,2] b",
       "y = Einsum<equation = \"bij,bjk->bik\">(a, b)"},
      {"EinsumEllipsis", "double[2,3,4] a, double[4,2] b",
       "y = Einsum<equation = \"...ij,jk->...ik\">(a, b)"},
      {"EinsumEllipsisBroadcast", "double[2,1,3,4] a, double[1,5,4,2] b",
       "y = Einsum<equation = \"...ij,...jk->...ik\">(a, b)"},
      {"EinsumThree", "double[2,3] a, double[3,4] b, double[4] c",
       "y = Einsum<equation = \"ij,jk,k->i\">(a, b, c)"},
      {"EinsumAttention", "double[2,3,2,4] q, double[2,5,2,4] k",
       "y = Einsum<equation = \"bqhd,bkhd->bhqk\">(q, k)"},
      {"EinsumSummedAway", "double[2,3] a, double[2,4] b",
       "y = Einsum<equation = \"ij,ik->i\">(a, b)"},
  };
}

}  // namespace caesura
