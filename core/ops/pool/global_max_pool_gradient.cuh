// SPDX-License-Identifier: Apache-2.0
// GlobalMaxPoolGrad.
#include "core/kernels/cuda/row_reduce.cuh"

#ifndef S_TYPE
#define S_TYPE float
#define C_TYPE float
#endif
typedef S_TYPE S;
typedef C_TYPE C;

// A block an image. dX may lie over X: a thread writes what only it reads.
extern "C" __global__ void global_max_pool_gradient(const S* dy, const S* x, S* dx, i64 images,
                                                    i64 count) {
  for (i64 image = blockIdx.x; image < images; image += gridDim.x) {
    const S* from = x + image * count;
    C most = -INFINITE;
    i64 best = -1;
    for (i64 j = threadIdx.x; j < count; j += blockDim.x) {
      const C v = Load(from + j);
      if (best < 0 || v > most || (v != v && most == most)) {
        most = v;
        best = j;
      }
    }
    const C all = RowReduce(most, RowMax());
    const bool has = best >= 0 && (most == all || (most != most && all != all));
    const i64 place = RowReduce(has ? best : count, RowMin());
    const C d = Load(dy + image);
    for (i64 j = threadIdx.x; j < count; j += blockDim.x)
      Store(dx + image * count + j, j == place ? d : (C)0);
  }
}
