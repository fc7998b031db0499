// SPDX-License-Identifier: Apache-2.0
// Attention of halves and its gradient by one plan of cuDNN's each.
#ifndef CAESURA_CORE_OPS_ATTENTION_CUDA_ATTENTION_FUSED_H_
#define CAESURA_CORE_OPS_ATTENTION_CUDA_ATTENTION_FUSED_H_

#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/kernel.h"
#include "core/ops/attention/attention_spec.h"

namespace caesura {

// Set the compute function by cuDNN; the outputs are set already. False, with nothing done, where
// cuDNN is not there or has no plan.
bool SetFusedAttention(KernelInfo& info, const CudaDevicePtr& device, const AttentionSpec& s);
bool SetFusedAttentionGradient(KernelInfo& info, const CudaDevicePtr& device,
                               const AttentionSpec& s);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_ATTENTION_CUDA_ATTENTION_FUSED_H_
