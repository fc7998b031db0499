// SPDX-License-Identifier: Apache-2.0
// In caesura_first, in place of cpu_kernels.cc: the kernels that the first example of
// examples/run.sh runs, in the order of families.inc.
#include "core/ops/cpu_kernels.h"

namespace caesura {

// clang-format off
#define FIRST_KERNELS \
  CPU(Activation) CPU(ActivationGrad) CPU(Movement) CPU(ShapeOps) CPU(ShapeGenerate) CPU(SumTo) CPU(MatMul) CPU(Conv) \
  CPU(ConvGrad) CPU(Pool) CPU(PoolGrad) CPU(BatchNorm) CPU(BatchNormGrad) CPU(Loss) CPU(LossGrad) CPU(OptimizerUpdate) \
  CPU(GradientScale)
// clang-format on

#define CPU(part) void Register##part(KernelRegistry& registry);
FIRST_KERNELS
#undef CPU

void RegisterCpuKernels(KernelRegistry& registry) {
#define CPU(part) Register##part(registry);
  FIRST_KERNELS
}

}  // namespace caesura
