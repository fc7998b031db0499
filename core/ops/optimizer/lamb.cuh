// SPDX-License-Identifier: Apache-2.0
// LambUpdate: moments with sums of squares for each chunk, a ratio for each parameter, then the
// parameters. A parameter, its gradient, m and v are the table's arrays.
#ifndef RULE
#define RULE LambRule
#endif

#include "core/kernels/cuda/row_reduce.cuh"
#include "core/kernels/cuda/tensor_table.cuh"
#include "core/ops/optimizer/update_step.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    lamb_moments(const R* rates, const i64* number, const Q* scale_at,
                 const __grid_constant__ Table table, const __grid_constant__ Numbers numbers,
                 unsigned* error, unsigned wrong_step, const unsigned* gate, double* sums) {
  __shared__ Rule rule;
  __shared__ Hyperparameters step;
  if (threadIdx.x == 0) {
    step = ReadHyperparameters(rates, number, scale_at, numbers, error, gate);
    if (step.number < 1 && blockIdx.x == 0) atomicCAS(error, 0u, wrong_step);
    rule = RuleOf(step, numbers, nullptr);
  }
  __syncthreads();
  if (step.skip) return;
  const Rule own = rule;
  const C factor = (C)step.scale;
  Chunk chunk = {};
  for (int c = blockIdx.x; c < table.chunks; c += gridDim.x) {
    MoveTo(table, c, chunk);
    const S* p = (const S*)table.at[0][chunk.tensor] + chunk.begin;
    const S* g = (const S*)table.at[1][chunk.tensor] + chunk.begin;
    S* m = (S*)table.at[2][chunk.tensor] + chunk.begin;
    S* v = (S*)table.at[3][chunk.tensor] + chunk.begin;
    double of_p = 0, of_u = 0;
    for (int i = threadIdx.x; i < chunk.count; i += THREADS) {
      C parameter = Load(p + i), state[2] = {Load(m + i), Load(v + i)};
      own(parameter, (C)(Load(g + i) * factor), state);
      S stored[2];
      Store(stored, state[0]);
      Store(stored + 1, state[1]);
      m[i] = stored[0];
      v[i] = stored[1];
      const double u = (double)own.Direction(parameter, Load(stored), Load(stored + 1));
      of_p += (double)parameter * (double)parameter;
      of_u += u * u;
    }
    of_p = RowReduce(of_p, RowSum());
    of_u = RowReduce(of_u, RowSum());
    if (threadIdx.x == 0) {
      sums[2 * c] = of_p;
      sums[2 * c + 1] = of_u;
    }
  }
}

// A block a parameter.
extern "C" __global__ void __launch_bounds__(THREADS)
    lamb_ratios(const R* rates, const i64* number, const Q* scale_at,
                const __grid_constant__ Table table, const __grid_constant__ Numbers numbers,
                const unsigned* error, const unsigned* gate, const double* sums, double* ratios) {
  if (ReadHyperparameters(rates, number, scale_at, numbers, error, gate).skip) return;
  const int t = blockIdx.x;
  const i64 chunks = (table.elements[t] + CHUNK - 1) / CHUNK;
  double of_p = 0, of_u = 0;
  for (i64 i = threadIdx.x; i < chunks; i += THREADS) {
    of_p += sums[2 * (table.first[t] + i)];
    of_u += sums[2 * (table.first[t] + i) + 1];
  }
  of_p = RowReduce(of_p, RowSum());
  of_u = RowReduce(of_u, RowSum());
  if (threadIdx.x == 0) ratios[t] = caesura::TrustRatio(of_p, of_u);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    lamb_parameters(const R* rates, const i64* number, const Q* scale_at,
                    const __grid_constant__ Table table, const __grid_constant__ Numbers numbers,
                    const unsigned* error, const unsigned* gate, const double* ratios) {
  __shared__ Rule rule;
  __shared__ Hyperparameters step;
  if (threadIdx.x == 0) {
    step = ReadHyperparameters(rates, number, scale_at, numbers, error, gate);
    rule = RuleOf(step, numbers, nullptr);
  }
  __syncthreads();
  if (step.skip) return;
  const Rule own = rule;
  Chunk chunk = {};
  for (int c = blockIdx.x; c < table.chunks; c += gridDim.x) {
    MoveTo(table, c, chunk);
    S* p = (S*)table.at[0][chunk.tensor] + chunk.begin;
    const S* m = (const S*)table.at[2][chunk.tensor] + chunk.begin;
    const S* v = (const S*)table.at[3][chunk.tensor] + chunk.begin;
    const C rate = (C)(step.learning_rate * ratios[chunk.tensor]);
    for (int i = threadIdx.x; i < chunk.count; i += THREADS) {
      const C parameter = Load(p + i);
      Store(p + i, parameter - rate * own.Direction(parameter, Load(m + i), Load(v + i)));
    }
  }
}
