// SPDX-License-Identifier: Apache-2.0
// A product, or a batch of them, as one call of cuBLASLt's, with all descriptors and the algorithm
// decided once.
//
// cuBLASLt counts columns first. A row-major C = A B is its C^T = B^T A^T, so operand "A" of the
// library is our B.
#ifndef CAESURA_CORE_KERNELS_CUDA_LT_PRODUCT_H_
#define CAESURA_CORE_KERNELS_CUDA_LT_PRODUCT_H_

#include <memory>
#include <vector>

#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/gemm/gemm_spec.h"

namespace caesura {

struct StridedWalk;

// Thread safety: Run from any thread.
class LtProduct {
 public:
  // kDeclined for other types than CudaProduct's, for matrices whose elements have a distance along
  // both axes, and where cuBLASLt has no algorithm. A bias has C's type. REQUIRES: no extent
  // is 0, and c_dtype is set.
  static Result<LtProduct> Create(KernelInfo& info, const CudaDevicePtr& device, GemmSpec spec);

  // As GemmSpec says; bias and addend are null where it has none.
  Status Run(KernelContext& context, const void* a, const void* b, void* c, const void* bias,
             const void* addend) const;

 private:
  struct Descriptors;
  // The first elements of one product among those that share descriptors, in elements.
  struct Place {
    int64_t a, b, c;
  };

  static std::vector<Place> PlacesOf(const GemmSpec& spec, const StridedWalk& batches);

  std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<const Descriptors> descriptors_;
  GemmSpec spec_;
  std::vector<Place> places_;
  size_t element_bytes_ = 0, c_element_bytes_ = 0;
  size_t workspace_ = 0, workspace_bytes_ = 0;
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CUDA_LT_PRODUCT_H_
