// SPDX-License-Identifier: Apache-2.0
// The scalars of parameters after an update, blocks of which read them at any time.
#include "core/kernels/cuda/tensor_table.cuh"
#include "core/ops/optimizer/update_step.cuh"

extern "C" __global__ void set_scalars(const R* rates, const i64* number, const Q* scale_at,
                                       const __grid_constant__ Table table,
                                       const __grid_constant__ Numbers numbers, unsigned* error,
                                       const unsigned* gate) {
  const Hyperparameters step = ReadHyperparameters(rates, number, scale_at, numbers, error, gate);
  if (step.skip) return;
  for (int t = threadIdx.x; t < table.tensors; t += blockDim.x) {
    V scalars[2];
    for (int k = 0; k < SCALARS; ++k) scalars[k] = *(const V*)table.at[k][t];
    RuleOf(step, numbers, scalars);
    for (int k = 0; k < SCALARS; ++k) *(V*)table.at[k][t] = scalars[k];
  }
}
