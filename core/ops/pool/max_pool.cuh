// SPDX-License-Identifier: Apache-2.0
// MaxPool and its gradient: the windows' maxima, then for each element what the windows have for
// it.
#include "core/ops/pool/pool_windows.cuh"

#ifndef LOWEST
#define LOWEST (C)(-INFINITE)
#define COLUMN_MAJOR false
#endif

// NaN wins. `best`: the place of the first maximum, of the last NaN; -1 for an empty window.
struct Maximum {
  const S* image;
  C most;
  Index best;

  __device__ void operator()(Index place) {
    const C v = Load(image + place);
    if (v > most || v != v || best < 0) {
      most = v;
      best = place;
    }
  }
};

// Each result where it is wanted: `places` in the image, `indices` in all of X.
extern "C" __global__ void max_pool(const S* x, S* y, i64* indices, int* places, i64 n,
                                    Sizes sizes) {
  for (i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x; at < n;
       at += (i64)gridDim.x * blockDim.x) {
    const Place o(at, sizes.output);
    const Index before = o.image * Elements(sizes.input);
    Maximum maximum = {x + before, LOWEST, -1};
    WalkWindow(o, sizes, maximum);
    if (y) Store(y + at, maximum.most);
    if (places) places[at] = (int)maximum.best;
    if (!indices) continue;
    Index index = maximum.best;
    if (COLUMN_MAJOR && index >= 0) {
      const Place i(index, sizes.input);
      index = i.a0 + (Index)sizes.input[0] * (i.a1 + (Index)sizes.input[1] * i.a2);
    }
    indices[at] = maximum.best < 0 ? -1 : (i64)before + index;
  }
}

struct MaximaHere {
  const S* dy;
  const int* places;
  Index here;
  C sum;

  __device__ void operator()(Index output, Index, Index, Index) {
    if (places[output] == here) sum += Load(dy + output);
  }
};

extern "C" __global__ void max_pool_gradient(const S* dy, const int* places, S* dx, i64 n,
                                             Sizes sizes) {
  for (i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x; at < n;
       at += (i64)gridDim.x * blockDim.x) {
    const Place i(at, sizes.input);
    const Index before = i.image * Elements(sizes.output);
    MaximaHere maxima = {dy + before, places + before, PlaceOf(i.a0, i.a1, i.a2, sizes.input), 0};
    WalkHolders(i, sizes, maxima);
    Store(dx + at, maxima.sum);
  }
}
