// SPDX-License-Identifier: Apache-2.0
// Many copies within the device's memory by few launches.
#ifndef CAESURA_CORE_PROVIDERS_CUDA_CUDA_COPIES_H_
#define CAESURA_CORE_PROVIDERS_CUDA_CUDA_COPIES_H_

#include <vector>

#include "core/kernels/cuda/cuda_kernel.h"
#include "core/providers/copy_all.h"

namespace caesura {

// Puts the copies on the device's stream, as CopyAll (core/providers/copy_all.h) says.
Status CopyAllOnCuda(const CudaDevicePtr& device, const std::vector<DeviceCopy>& copies);

}  // namespace caesura

#endif  // CAESURA_CORE_PROVIDERS_CUDA_CUDA_COPIES_H_
