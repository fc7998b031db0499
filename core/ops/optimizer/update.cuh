// SPDX-License-Identifier: Apache-2.0
// Updates by a rule of update_rules.h.
#include "core/kernels/cuda/tensor_table.cuh"
#include "core/ops/optimizer/update_step.cuh"

// The rule is made once a step, or for each parameter if it has scalars, which the table has after
// the states.
extern "C" __global__ void __launch_bounds__(THREADS)
    update(const R* rates, const i64* number, const Q* scale_at,
           const __grid_constant__ Table table, const __grid_constant__ Numbers numbers,
           unsigned* error, unsigned wrong_step, const unsigned* gate) {
  __shared__ Rule rule;
  __shared__ Hyperparameters step;
  if (threadIdx.x == 0) {
    step = ReadHyperparameters(rates, number, scale_at, numbers, error, gate);
    if (step.number < 1 && blockIdx.x == 0) atomicCAS(error, 0u, wrong_step);
    if (SCALARS == 0) rule = RuleOf(step, numbers, nullptr);
  }
  __syncthreads();
  if (step.skip) return;
  Rule own;
  if (SCALARS == 0) own = rule;
  int ruled = -1;  // the parameter whose rule it is, where each has its own
  const C factor = (C)step.scale;
  // A parameter, its gradient, its states.
  constexpr int kPack = 16 / sizeof(S), kArrays = 2 + Rule::kStates;
  Chunk chunk = {};
  for (int c = blockIdx.x; c < table.chunks; c += gridDim.x) {
    MoveTo(table, c, chunk);
    if (SCALARS > 0 && chunk.tensor != ruled) {
      ruled = chunk.tensor;
      __syncthreads();  // the rule before may still be read
      if (threadIdx.x == 0) {
        V scalars[2];
        for (int k = 0; k < SCALARS; ++k) scalars[k] = *(const V*)table.at[kArrays + k][ruled];
        rule = RuleOf(step, numbers, scalars);
      }
      __syncthreads();
      own = rule;
    }
    S* at[kArrays];
    bool whole = chunk.count == CHUNK;
#pragma unroll
    for (int k = 0; k < kArrays; ++k) {
      at[k] = (S*)table.at[k][chunk.tensor] + chunk.begin;
      whole &= OnWord(at[k]);
    }
    for (int i = threadIdx.x * kPack; i < chunk.count; i += THREADS * kPack) {
      const int left = chunk.count - i;
      Pack<S, kPack> packs[kArrays];
      if (whole) {
#pragma unroll
        for (int k = 0; k < kArrays; ++k) packs[k].LoadWords(at[k] + i);
      } else {
#pragma unroll
        for (int k = 0; k < kArrays; ++k) packs[k].LoadSome(at[k] + i, left);
      }
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        C parameter = Load(packs[0].v + e), state[3];
#pragma unroll
        for (int k = 0; k < Rule::kStates; ++k) state[k] = Load(packs[2 + k].v + e);
        own(parameter, (C)(Load(packs[1].v + e) * factor), state);
        Store(packs[0].v + e, parameter);
#pragma unroll
        for (int k = 0; k < Rule::kStates; ++k) Store(packs[2 + k].v + e, state[k]);
      }
      if (whole) {
#pragma unroll
        for (int k = 0; k < kArrays; ++k)
          if (k != 1) packs[k].StoreWords(at[k] + i);
      } else {
#pragma unroll
        for (int k = 0; k < kArrays; ++k)
          if (k != 1) packs[k].StoreSome(at[k] + i, left);
      }
    }
  }
}
