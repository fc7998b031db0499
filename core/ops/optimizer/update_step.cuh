// SPDX-License-Identifier: Apache-2.0
// All updates share the numbers of a step and its rule. S, C: a parameter's type in memory
// and in a thread; R, Q, V: that of the rates, the scale and scalar states, of which there are at
// most 2.
#ifndef CAESURA_CORE_KERNELS_CUDA_OPTIMIZER_UPDATE_STEP_CUH_
#define CAESURA_CORE_KERNELS_CUDA_OPTIMIZER_UPDATE_STEP_CUH_

#include "core/kernels/cuda/prelude.cuh"
#include "core/ops/optimizer/update_rules.h"

#ifndef S_TYPE
#define S_TYPE float
#define C_TYPE float
#define R_TYPE float
#define Q_TYPE double
#define V_TYPE float
#define SCALARS 0
#endif
#ifndef RULE
#define RULE PlainSgdRule
#endif
typedef S_TYPE S;
typedef C_TYPE C;
typedef R_TYPE R;
typedef Q_TYPE Q;
typedef V_TYPE V;
typedef caesura::RULE<C> Rule;

struct Numbers {
  double written[6];
  i64 fed[6];
  i64 rate, step_offset, flag, maximize, skip_nonfinite, skip_infinite;
};
// `scale` is that of the gradients; with `skip` nothing may change.
struct Hyperparameters {
  double learning_rate;
  i64 number;
  double coefficients[6];
  double scale;
  int skip;
};

// The gate is null, or opened: it may forbid to write. So does an error of a kernel before.
__device__ inline Hyperparameters ReadHyperparameters(const R* rates, const i64* number,
                                                      const Q* scale_at, const Numbers& numbers,
                                                      const unsigned* error, const unsigned* gate) {
  Hyperparameters step;
  step.learning_rate = (double)Load(rates + numbers.rate);
  step.number = *number;
  if (numbers.step_offset >= 0) step.number += (i64)(double)Load(rates + numbers.step_offset);
  for (int k = 0; k < 6; ++k)
    step.coefficients[k] =
        numbers.fed[k] < 0 ? numbers.written[k] : (double)Load(rates + numbers.fed[k]);
  const double given = scale_at ? (double)Load(scale_at) : 1.0;
  step.scale = numbers.maximize ? -given : given;
  step.skip = step.number < 1 || (numbers.skip_nonfinite && !caesura::IsFinite(given)) ||
              (numbers.skip_infinite && given == given && !caesura::IsFinite(given)) ||
              *(const volatile unsigned*)error != 0 ||
              (gate != nullptr && *(const volatile unsigned*)gate != 0);
  return step;
}

// The rule of the step, or of the parameter with these scalars, which it changes.
__device__ inline Rule RuleOf(const Hyperparameters& step, const Numbers& numbers, V* scalars) {
#if SCALARS > 0
  return Rule::Of(step, numbers.flag != 0, scalars);
#else
  return Rule::Of(step, numbers.flag != 0);
#endif
}

#endif  // CAESURA_CORE_KERNELS_CUDA_OPTIMIZER_UPDATE_STEP_CUH_
