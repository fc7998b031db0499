// SPDX-License-Identifier: Apache-2.0
// The part of cuBLASLt's binary interface that products need, as the versions 12 and 13 have it.
// The names are those of cublasLt.h without their prefix; a test compares them with that header
// where its package (0.5 GB) is installed.
#ifndef CAESURA_CORE_CUDA_CUBLAS_LT_H_
#define CAESURA_CORE_CUDA_CUBLAS_LT_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace caesura::cublas_lt {

using Handle = struct HandleStruct*;
using MatmulDesc = struct MatmulDescStruct*;
using MatrixLayout = struct MatrixLayoutStruct*;
using Preference = struct PreferenceStruct*;

enum Status : int { kSuccess = 0, kNotSupported = 15 };
enum DataType : int { kReal32F = 0, kReal64F = 1, kReal16F = 2, kReal16BF = 14 };
enum ComputeType : int { kCompute32F = 68, kCompute64F = 70, kCompute32FFastTf32 = 77 };
enum Operation : int { kNone = 0, kTranspose = 1 };
enum Epilogue : int { kDefault = 1, kBias = 4 };
enum MatmulDescAttribute : int {
  kDescTransA = 3,
  kDescTransB = 4,
  kDescEpilogue = 7,
  kDescBiasPointer = 8,
  kDescBiasDataType = 26,
};
enum MatrixLayoutAttribute : int {
  kLayoutBatchCount = 5,
  kLayoutBatchStride = 6,
};
// The ways to add up parts of long sums. In the compute type no part is rounded.
enum ReductionScheme : uint32_t { kInComputeType = 2 };
enum PreferenceAttribute : int {
  kMaxWorkspaceBytes = 1,
  kReductionSchemes = 3,  // a mask of ReductionScheme
  kMinAlignmentA = 5,     // in bytes, as those of B, C and D
  kMinAlignmentB = 6,
  kMinAlignmentC = 7,
  kMinAlignmentD = 8,
};

struct Algorithm {
  uint64_t data[8];
};

struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

}  // namespace caesura::cublas_lt

// F(name, arguments): functions that return a Status.
#define CAESURA_CUBLAS_LT_FUNCTIONS(F)                                                            \
  F(Create, (cublas_lt::Handle*))                                                                 \
  F(Destroy, (cublas_lt::Handle))                                                                 \
  F(MatmulDescCreate, (cublas_lt::MatmulDesc*, cublas_lt::ComputeType, cublas_lt::DataType))      \
  F(MatmulDescDestroy, (cublas_lt::MatmulDesc))                                                   \
  F(MatmulDescSetAttribute,                                                                       \
    (cublas_lt::MatmulDesc, cublas_lt::MatmulDescAttribute, const void*, size_t))                 \
  F(MatrixLayoutCreate,                                                                           \
    (cublas_lt::MatrixLayout*, cublas_lt::DataType, uint64_t, uint64_t, int64_t))                 \
  F(MatrixLayoutDestroy, (cublas_lt::MatrixLayout))                                               \
  F(MatrixLayoutSetAttribute,                                                                     \
    (cublas_lt::MatrixLayout, cublas_lt::MatrixLayoutAttribute, const void*, size_t))             \
  F(MatmulPreferenceCreate, (cublas_lt::Preference*))                                             \
  F(MatmulPreferenceDestroy, (cublas_lt::Preference))                                             \
  F(MatmulPreferenceSetAttribute,                                                                 \
    (cublas_lt::Preference, cublas_lt::PreferenceAttribute, const void*, size_t))                 \
  F(MatmulAlgoGetHeuristic,                                                                       \
    (cublas_lt::Handle, cublas_lt::MatmulDesc, cublas_lt::MatrixLayout, cublas_lt::MatrixLayout,  \
     cublas_lt::MatrixLayout, cublas_lt::MatrixLayout, cublas_lt::Preference, int,                \
     cublas_lt::HeuristicResult*, int*))                                                          \
  F(Matmul,                                                                                       \
    (cublas_lt::Handle, cublas_lt::MatmulDesc, const void*, const void*, cublas_lt::MatrixLayout, \
     const void*, cublas_lt::MatrixLayout, const void*, const void*, cublas_lt::MatrixLayout,     \
     void*, cublas_lt::MatrixLayout, const cublas_lt::Algorithm*, void*, size_t, CUstream))

#endif  // CAESURA_CORE_CUDA_CUBLAS_LT_H_
