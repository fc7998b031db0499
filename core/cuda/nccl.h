// SPDX-License-Identifier: Apache-2.0
// The part of NCCL's binary interface that communicators need, as versions from 2.18 on have it.
// The names are those of nccl.h without their prefix; a test compares them with that header where
// its package is installed.
#ifndef CAESURA_CORE_CUDA_NCCL_H_
#define CAESURA_CORE_CUDA_NCCL_H_

#include <cuda.h>

#include <climits>
#include <cstddef>

namespace caesura::nccl {

using Comm = struct CommStruct*;

enum Result : int {
  kSuccess = 0,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kInProgress = 7,
};
enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};
enum RedOp : int { kSum = 0, kMax = 2, kMin = 3 };

struct UniqueId {
  char internal[128];
};

// The beginning of ncclConfig_t, whose `size` and `version` tell NCCL how much of it is there. From
// 2.17 on the next member fills the struct: it is left undefined.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21700;
  int blocking = 0;  // calls return kInProgress, and GetAsyncError says when they have ended
  int cga_cluster_size = INT_MIN;
};

}  // namespace caesura::nccl

// F(name, arguments): functions that return a Result.
#define CAESURA_NCCL_FUNCTIONS(F)                                                               \
  F(GetUniqueId, (nccl::UniqueId*))                                                             \
  F(CommInitRankConfig, (nccl::Comm*, int, nccl::UniqueId, int, nccl::Config*))                 \
  F(CommGetAsyncError, (nccl::Comm, nccl::Result*))                                             \
  F(CommFinalize, (nccl::Comm))                                                                 \
  F(CommDestroy, (nccl::Comm))                                                                  \
  F(CommAbort, (nccl::Comm))                                                                    \
  F(GroupStart, ())                                                                             \
  F(GroupEnd, ())                                                                               \
  F(AllReduce, (const void*, void*, size_t, nccl::DataType, nccl::RedOp, nccl::Comm, CUstream)) \
  F(ReduceScatter,                                                                              \
    (const void*, void*, size_t, nccl::DataType, nccl::RedOp, nccl::Comm, CUstream))            \
  F(AllGather, (const void*, void*, size_t, nccl::DataType, nccl::Comm, CUstream))              \
  F(Broadcast, (const void*, void*, size_t, nccl::DataType, int, nccl::Comm, CUstream))         \
  F(Send, (const void*, size_t, nccl::DataType, int, nccl::Comm, CUstream))                     \
  F(Recv, (void*, size_t, nccl::DataType, int, nccl::Comm, CUstream))

#endif  // CAESURA_CORE_CUDA_NCCL_H_
