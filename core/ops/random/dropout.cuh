// SPDX-License-Identifier: Apache-2.0
// Dropout. The random words are those of core/ops/random/philox.h.
#include "core/kernels/cuda/prelude.cuh"

#ifndef S_TYPE
#define S_TYPE float
#define C_TYPE float
#define R_TYPE float
#endif
typedef S_TYPE S;
typedef C_TYPE C;
typedef R_TYPE R;

__device__ inline void PhiloxBlock(u64 index, unsigned step, unsigned subsequence, unsigned key0,
                                   unsigned key1, unsigned* c) {
  c[0] = (unsigned)index;
  c[1] = (unsigned)(index >> 32);
  c[2] = step;
  c[3] = subsequence;
  for (int round = 0; round < 10; ++round) {
    const u64 a = (u64)0xD2511F53u * c[0], b = (u64)0xCD9E8D57u * c[2];
    const unsigned c1 = c[1], c3 = c[3];
    c[0] = (unsigned)(b >> 32) ^ c1 ^ key0;
    c[1] = (unsigned)b;
    c[2] = (unsigned)(a >> 32) ^ c3 ^ key1;
    c[3] = (unsigned)a;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

extern "C" __global__ void dropout(const S* x, const R* ratio_at, const bool* mode, S* y,
                                   bool* mask, i64 n, const u64* key, bool has_seed, u64 seed,
                                   u64 subsequence, unsigned* error, unsigned number) {
  const u64 step = key[1];
  if (!has_seed) seed = key[0];
  const unsigned key0 = (unsigned)seed ^ (unsigned)(step >> 32);
  const unsigned key1 = (unsigned)(seed >> 32) ^ (unsigned)(subsequence >> 32);
  const bool training = mode && Load(mode);
  double ratio = training ? (ratio_at ? (double)Load(ratio_at) : 0.5) : 0.0;
  if (!(ratio >= 0 && ratio <= 1)) {
    if (blockIdx.x == 0 && threadIdx.x == 0) atomicCAS(error, 0u, number);
    ratio = 0;
  }
  double edge = rint(ratio * 4294967296.0);
  const unsigned threshold = edge > 4294967295.0 ? 4294967295u : (unsigned)edge;
  const C scale = ratio < 1 ? (C)(1 / (1 - ratio)) : (C)0;
  const i64 blocks = (n + 3) / 4;
  for (i64 b = blockIdx.x * (i64)blockDim.x + threadIdx.x; b < blocks;
       b += (i64)gridDim.x * blockDim.x) {
    unsigned words[4];
    if (ratio > 0) PhiloxBlock(b, (unsigned)step, (unsigned)subsequence, key0, key1, words);
    for (int k = 0; k < 4; ++k) {
      const i64 i = b * 4 + k;
      if (i >= n) break;
      const bool keeps = ratio == 0 || words[k] >= threshold;
      const C v = Load(x + i);
      Store(y + i, ratio == 0 ? v : keeps ? v * scale : (C)0);
      if (mask) mask[i] = ratio == 0 || (ratio < 1 && keeps);
    }
  }
}
