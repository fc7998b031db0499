// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cuda/cuda_kernel.h"

#include "core/cuda/cuda_source.h"

namespace caesura {

Result<CudaKernel> CudaKernel::Make(const CudaDevicePtr& device, const std::string& source,
                                    const std::string& name, CudaGrid grid) {
  ASSIGN_OR_RETURN(const CUfunction function,
                   device->Function(CudaInclude("core/kernels/cuda/prelude.cuh") + source, name));
  return CudaKernel(device, function, grid);
}

Status CudaKernel::LaunchWith(void** addresses) const {
  RETURN_IF_ERROR(device_->MakeCurrent());
  return device_->Launch(function_, grid_.blocks, grid_.threads, grid_.shared_bytes, addresses);
}

}  // namespace caesura
