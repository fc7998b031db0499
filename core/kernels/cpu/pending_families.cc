// SPDX-License-Identifier: Apache-2.0
// TEMPORARY (lead): weak definitions of the families that are still being written, so that programs link. Deleted
// before anything lands.
#include "core/kernels/cpu/kernel_list.h"
#include "training/kernels/training_ops.h"
#define PENDING(name) __attribute__((weak)) void name(KernelRegistry&) {}
namespace caesura {
PENDING(RegisterUnaryKernels) PENDING(RegisterBinaryKernels) PENDING(RegisterLogicKernels) PENDING(RegisterCastKernels)
PENDING(RegisterQuantizeKernels) PENDING(RegisterMovementKernels) PENDING(RegisterShapeKernels)
PENDING(RegisterIndexingKernels) PENDING(RegisterReductionKernels) PENDING(RegisterMatMulKernels)
PENDING(RegisterConvKernels) PENDING(RegisterPoolKernels) PENDING(RegisterNormalizationKernels)
PENDING(RegisterLossKernels) PENDING(RegisterRandomKernels) PENDING(RegisterRecurrentKernels)
PENDING(RegisterAttentionKernels) PENDING(RegisterImageKernels) PENDING(RegisterSignalKernels)
PENDING(RegisterSequenceKernels) PENDING(RegisterTextKernels) PENDING(RegisterControlFlowKernels)
PENDING(RegisterMlKernels)
PENDING(RegisterActivationGradKernels) PENDING(RegisterMovementGradKernels) PENDING(RegisterConvGradKernels)
PENDING(RegisterPoolGradKernels) PENDING(RegisterNormalizationGradKernels) PENDING(RegisterLossGradKernels)
PENDING(RegisterRecurrentGradKernels) PENDING(RegisterImageGradKernels) PENDING(RegisterAttentionGradKernels)
PENDING(RegisterOptimizerKernels)
__attribute__((weak)) Status RegisterTrainingOpSchemas() { return {}; }
}  // namespace caesura
