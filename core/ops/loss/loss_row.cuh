// SPDX-License-Identifier: Apache-2.0
// A sample's scores, which are row[0], row[stride] and so on. A thread's columns are threadIdx.x,
// threadIdx.x + THREADS and so on, wherever the row begins: the order of sums depends on no
// address, and the threads of a warp read side by side.
#ifndef CAESURA_CORE_KERNELS_CUDA_NORMALIZATION_LOSS_ROW_CUH_
#define CAESURA_CORE_KERNELS_CUDA_NORMALIZATION_LOSS_ROW_CUH_

#include "core/kernels/cuda/row_reduce.cuh"

#ifndef S_TYPE
#define S_TYPE float
#define Y_TYPE float
#define C_TYPE float
#define L_TYPE i64
#define INDEX_TYPE int
#define X_STRIDE 1
#define Y_STRIDE 1
#define THREADS 256
#define AT_ONCE 4
#define SOFTMAX true
#define EXP expf
#define LOG logf
#define WALK_NUMBERS 3
#define OFFSETS i64 offset0 = i * classes, offset1 = i * classes
#endif
typedef S_TYPE S;
typedef Y_TYPE Y;
typedef C_TYPE C;
typedef L_TYPE L;
typedef INDEX_TYPE Index;
struct Walk {
  i64 at[WALK_NUMBERS];
};

template <typename T>
__device__ inline void StoreStreamed(T* p, C v) {
  Store(p, v);
}
__device__ inline void StoreStreamed(float* p, float v) { __stcs(p, v); }

// A thread's columns from `first` on, as many as it has on their way at once.
struct Columns {
  C v[AT_ONCE];

  // Past the row's end there is -infinity.
  __device__ void Read(const S* row, Index first, Index columns, Index stride) {
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
      const Index c = first + k * THREADS;
      v[k] = c < columns ? Load(row + c * stride) : -INFINITE;
    }
  }
  // As memory that is read much later: what others still need stays in the cache.
  __device__ void Write(Y* row, Index first, Index columns, Index stride) const {
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
      const Index c = first + k * THREADS;
      if (c < columns) StoreStreamed(row + c * stride, v[k]);
    }
  }
};

// Sample i: its label, whether it is ignored, its weight, and where its scores begin.
#define SAMPLE                                          \
  const Index columns = (Index)classes;                 \
  OFFSETS;                                              \
  i64 label = labels[i];                                \
  const bool ignored = has_ignore && label == ignore;   \
  if (!ignored && (label < 0 || label >= classes)) {    \
    if (threadIdx.x == 0) atomicCAS(error, 0u, number); \
    label = 0;                                          \
  }                                                     \
  if (ignored) label = 0;                               \
  const C weight = ignored ? (C)0 : weights ? Load(weights + label) : (C)1

#endif  // CAESURA_CORE_KERNELS_CUDA_NORMALIZATION_LOSS_ROW_CUH_
