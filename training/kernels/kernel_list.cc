// SPDX-License-Identifier: Apache-2.0
#include "training/kernels/training_ops.h"

namespace caesura {

void RegisterTrainingKernels(KernelRegistry& registry) {
  RegisterActivationGradKernels(registry);
  RegisterMovementGradKernels(registry);
  RegisterConvGradKernels(registry);
  RegisterPoolGradKernels(registry);
  RegisterNormalizationGradKernels(registry);
  RegisterLossGradKernels(registry);
  RegisterCtcLossKernels(registry);
  RegisterRecurrentGradKernels(registry);
  RegisterImageGradKernels(registry);
  RegisterAttentionGradKernels(registry);
  RegisterOptimizerKernels(registry);
}

}  // namespace caesura
