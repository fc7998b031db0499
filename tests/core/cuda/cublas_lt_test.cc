// SPDX-License-Identifier: Apache-2.0
// core/cuda/cublas_lt.h and NVIDIA's own header say the same of cuBLASLt's interface.
#include "core/cuda/cublas_lt.h"

#include <gtest/gtest.h>

#include "tests/cuda/cublaslt/header.h"

namespace caesura::cublas_lt {
namespace {

template <typename Ours, typename Theirs>
constexpr bool Same(Ours ours, Theirs theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}

TEST(CublasLt, HasTheNumbersOfItsHeader) {
  EXPECT_TRUE(Same(kSuccess, CUBLAS_STATUS_SUCCESS));
  EXPECT_TRUE(Same(kNotSupported, CUBLAS_STATUS_NOT_SUPPORTED));
  EXPECT_TRUE(Same(kReal32F, CUDA_R_32F) && Same(kReal64F, CUDA_R_64F));
  EXPECT_TRUE(Same(kReal16F, CUDA_R_16F) && Same(kReal16BF, CUDA_R_16BF));
  EXPECT_TRUE(Same(kCompute32F, CUBLAS_COMPUTE_32F) && Same(kCompute64F, CUBLAS_COMPUTE_64F));
  EXPECT_TRUE(Same(kNone, CUBLAS_OP_N) && Same(kTranspose, CUBLAS_OP_T));
  EXPECT_TRUE(Same(kDefault, CUBLASLT_EPILOGUE_DEFAULT) && Same(kBias, CUBLASLT_EPILOGUE_BIAS));
  EXPECT_TRUE(Same(kDescTransA, CUBLASLT_MATMUL_DESC_TRANSA));
  EXPECT_TRUE(Same(kDescTransB, CUBLASLT_MATMUL_DESC_TRANSB));
  EXPECT_TRUE(Same(kDescEpilogue, CUBLASLT_MATMUL_DESC_EPILOGUE));
  EXPECT_TRUE(Same(kDescBiasPointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER));
  EXPECT_TRUE(Same(kDescBiasDataType, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE));
  EXPECT_TRUE(Same(kLayoutBatchCount, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT));
  EXPECT_TRUE(Same(kLayoutBatchStride, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET));
  EXPECT_TRUE(Same(kMaxWorkspaceBytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES));
  EXPECT_TRUE(Same(kReductionSchemes, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK));
  EXPECT_TRUE(Same(kInComputeType, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  EXPECT_TRUE(Same(kMinAlignmentA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES));
  EXPECT_TRUE(Same(kMinAlignmentD, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES));
}

TEST(CublasLt, HasTheLayoutOfItsStructs) {
  EXPECT_EQ(sizeof(Algorithm), sizeof(cublasLtMatmulAlgo_t));
  EXPECT_EQ(sizeof(HeuristicResult), sizeof(cublasLtMatmulHeuristicResult_t));
  EXPECT_EQ(offsetof(HeuristicResult, workspace_bytes),
            offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
  EXPECT_EQ(offsetof(HeuristicResult, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
}

}  // namespace
}  // namespace caesura::cublas_lt
