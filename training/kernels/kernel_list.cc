// SPDX-License-Identifier: Apache-2.0
#include "training/kernels/training_ops.h"

#include <cstring>

#include "core/kernels/spec/collectives.h"
#include "core/kernels/spec/exchanges.h"
#include "core/kernels/spec/shards.h"
#include "training/kernels/attention/kernel_list.h"
#include "training/kernels/conv/kernel_list.h"
#include "training/kernels/elementwise/kernel_list.h"
#include "training/kernels/image/kernel_list.h"
#include "training/kernels/movement/kernel_list.h"
#include "training/kernels/normalization/kernel_list.h"
#include "training/kernels/optimizer/kernel_list.h"
#include "training/kernels/recurrent/kernel_list.h"
#include "training/kernels/reduction/kernel_list.h"

namespace caesura {
namespace {

Status CopyOnHost(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return {};
}

}  // namespace

void RegisterTrainingKernels(KernelRegistry& registry) {
  RegisterElementwiseGradKernels(registry);
  RegisterMovementGradKernels(registry);
  RegisterReductionGradKernels(registry);
  RegisterConvGradKernels(registry);
  RegisterNormalizationGradKernels(registry);
  RegisterRecurrentGradKernels(registry);
  RegisterAttentionGradKernels(registry);
  RegisterImageGradKernels(registry);
  RegisterOptimizerKernels(registry);
  RegisterCollectives(registry, CopyOnHost);
  RegisterShards(registry);
  RegisterExchanges(registry);
}

}  // namespace caesura
