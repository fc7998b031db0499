// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cpu/kernel_list.h"

#include "core/kernels/cpu/attention/kernel_list.h"
#include "core/kernels/cpu/control_flow/kernel_list.h"
#include "core/kernels/cpu/conv/kernel_list.h"
#include "core/kernels/cpu/elementwise/kernel_list.h"
#include "core/kernels/cpu/fused_rows/kernel_list.h"
#include "core/kernels/cpu/gemm/kernel_list.h"
#include "core/kernels/cpu/image/kernel_list.h"
#include "core/kernels/cpu/ml/kernel_list.h"
#include "core/kernels/cpu/movement/kernel_list.h"
#include "core/kernels/cpu/normalization/kernel_list.h"
#include "core/kernels/cpu/random/kernel_list.h"
#include "core/kernels/cpu/recurrent/kernel_list.h"
#include "core/kernels/cpu/reduction/kernel_list.h"
#include "core/kernels/cpu/signal/kernel_list.h"
#include "core/kernels/cpu/text/kernel_list.h"

namespace caesura {

void RegisterCpuKernels(KernelRegistry& registry) {
  RegisterElementwiseKernels(registry);
  RegisterMovementKernels(registry);
  RegisterReductionKernels(registry);
  RegisterGemmKernels(registry);
  RegisterConvKernels(registry);
  RegisterNormalizationKernels(registry);
  RegisterRandomKernels(registry);
  RegisterRecurrentKernels(registry);
  RegisterAttentionKernels(registry);
  RegisterImageKernels(registry);
  RegisterSignalKernels(registry);
  RegisterControlFlowKernels(registry);
  RegisterTextKernels(registry);
  RegisterMlKernels(registry);
  RegisterFusedRowsKernels(registry);
}

}  // namespace caesura
