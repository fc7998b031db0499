// SPDX-License-Identifier: Apache-2.0
// A compiled kernel with its launch dimensions: what CUDA factories hand to SetCompute's function.
#ifndef CAESURA_CORE_KERNELS_CUDA_CUDA_KERNEL_H_
#define CAESURA_CORE_KERNELS_CUDA_CUDA_KERNEL_H_

#include <algorithm>
#include <array>
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

// The arguments of one launch, collected without an allocation.
class CudaArguments {
 public:
  // An address in the device's memory.
  void AddPointer(const void* pointer) {
    pointers_[count_] = pointer;
    addresses_[count_] = &pointers_[count_];
    ++count_;
  }
  // The bytes at `value`, which stays where it is until the launch returns.
  void Add(const void* value) { addresses_[count_++] = const_cast<void*>(value); }
  void** addresses() { return addresses_.data(); }

  // A kernel takes 4096 bytes of arguments.
  static constexpr size_t kMost = 512;

 private:
  std::array<const void*, kMost> pointers_;
  std::array<void*, kMost> addresses_;
  size_t count_ = 0;
};

// Thread safety: Launch from any thread. Copies share the device.
class CudaKernel {
 public:
  // The source is prelude.cuh and `source`, whose extern "C" function `name` is launched.
  static Result<CudaKernel> Make(const CudaDevicePtr& device, const std::string& source,
                                 const std::string& name, CudaGrid grid);

  // Puts the kernel on the device's stream. `arguments` have the types of its parameters.
  template <typename... Arguments>
  Status Launch(Arguments... arguments) const {
    void* addresses[] = {static_cast<void*>(&arguments)...};
    return LaunchWith(addresses);
  }
  // Launches with the arguments at these addresses, in order.
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
