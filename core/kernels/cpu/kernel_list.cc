// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cpu/kernel_list.h"

namespace caesura {

void RegisterCpuKernels(KernelRegistry& registry) {
  RegisterUnaryKernels(registry);
  RegisterBinaryKernels(registry);
  RegisterLogicKernels(registry);
  RegisterCastKernels(registry);
  RegisterQuantizeKernels(registry);
  RegisterMovementKernels(registry);
  RegisterShapeKernels(registry);
  RegisterIndexingKernels(registry);
  RegisterReductionKernels(registry);
  RegisterMatMulKernels(registry);
  RegisterConvKernels(registry);
  RegisterPoolKernels(registry);
  RegisterNormalizationKernels(registry);
  RegisterLossKernels(registry);
  RegisterRandomKernels(registry);
  RegisterRecurrentKernels(registry);
  RegisterQuantizedRecurrentKernels(registry);
  RegisterAttentionKernels(registry);
  RegisterImageKernels(registry);
  RegisterSignalKernels(registry);
  RegisterSequenceKernels(registry);
  RegisterTextKernels(registry);
  RegisterControlFlowKernels(registry);
  RegisterMlKernels(registry);
  RegisterFusedRowsKernel(registry);
}

}  // namespace caesura
