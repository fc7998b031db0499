// SPDX-License-Identifier: Apache-2.0
// A box of elements moved between two strided layouts on the device.
#ifndef CAESURA_CORE_KERNELS_CUDA_STRIDED_COPY_H_
#define CAESURA_CORE_KERNELS_CUDA_STRIDED_COPY_H_

#include <optional>
#include <vector>

#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/walks/moves.h"

namespace caesura {

// An unsigned type of so many bytes, as kernels write it; null for 16 and more.
const char* CudaWord(size_t bytes);

// Thread safety: Run from any thread.
class CudaStridedCopy {
 public:
  // kDeclined for elements of 16 bytes.
  static Result<CudaStridedCopy> Make(const KernelInfo& info, const CudaDevicePtr& device,
                                      size_t element_bytes, const StridedBox& box);

  // REQUIRES: the memory does not overlap (asserted of the first elements).
  Status Run(const void* from, void* to) const;

 private:
  std::optional<CudaKernel> kernel_;
  std::vector<int64_t> walk_;
  int64_t elements_ = 0, from_ = 0, to_ = 0;  // elements, bytes, bytes
  int64_t vector_ = 1;                        // elements that one access may move
  size_t alignment_ = 1;                      // of the addresses, for that
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CUDA_STRIDED_COPY_H_
