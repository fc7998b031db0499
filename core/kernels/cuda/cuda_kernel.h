// SPDX-License-Identifier: Apache-2.0
// A compiled kernel with its launch dimensions: what CUDA factories hand to SetCompute's function.
#ifndef CAESURA_CORE_KERNELS_CUDA_CUDA_KERNEL_H_
#define CAESURA_CORE_KERNELS_CUDA_CUDA_KERNEL_H_

#include <algorithm>
#include <memory>
#include <string>

#include "core/base/status_macros.h"
#include "core/cuda/cuda_device.h"

namespace caesura {

using CudaDevicePtr = std::shared_ptr<CudaDevice>;

struct CudaGrid {
  unsigned blocks = 1, threads = 1, shared_bytes = 0;
};

// Threads enough for n elements, each of which takes several when there are many.
inline CudaGrid GridOver(const CudaDevice& device, int64_t n) {
  constexpr int64_t kThreads = 256;
  const int64_t most = int64_t{32} * device.multiprocessors();
  return {static_cast<unsigned>(std::clamp<int64_t>((n + kThreads - 1) / kThreads, 1, most)),
          kThreads};
}

// Thread safety: Launch from any thread. Copies share the device.
class CudaKernel {
 public:
  // The source is CudaPrelude() and `source`, whose extern "C" function `name` is launched.
  static Result<CudaKernel> Make(const CudaDevicePtr& device, const std::string& source,
                                 const std::string& name, CudaGrid grid);

  // Puts the kernel on the device's stream. `arguments` have the types of its parameters.
  template <typename... Arguments>
  Status Launch(Arguments... arguments) const {
    void* addresses[] = {static_cast<void*>(&arguments)...};
    return LaunchWith(addresses);
  }
  // The same by the addresses of the arguments, in order.
  Status LaunchWith(void** addresses) const;

 private:
  CudaKernel(std::shared_ptr<CudaDevice> device, CUfunction function, CudaGrid grid)
      : device_(std::move(device)), function_(function), grid_(grid) {}

  std::shared_ptr<CudaDevice> device_;
  CUfunction function_;
  CudaGrid grid_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CUDA_CUDA_KERNEL_H_
