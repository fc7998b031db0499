// SPDX-License-Identifier: Apache-2.0
// A matrix product by the calls of cuBLASLt's that are fast for it.
#ifndef CAESURA_CORE_KERNELS_CUDA_CUDA_PRODUCT_H_
#define CAESURA_CORE_KERNELS_CUDA_CUDA_PRODUCT_H_

#include <optional>
#include <vector>

#include "core/kernels/cuda/lt_product.h"

namespace caesura {

// Thread safety: Run from any thread.
class CudaProduct {
 public:
  // float32 (without TF32), float64, float16 and bfloat16, whose sums are float32. kDeclined for
  // other types, for matrices whose elements have a distance along both axes, and where cuBLASLt
  // has no algorithm.
  static Result<CudaProduct> Create(KernelInfo& info, const CudaDevicePtr& device, GemmSpec spec);

  // As GemmSpec says; bias and addend are null where it has none.
  Status Run(KernelContext& context, const void* a, const void* b, void* c, const void* bias,
             const void* addend) const;

  // False: the bias of the spec was refused, and the caller writes it into C and accumulates.
  static bool TakesBias(DType dtype) { return dtype != DType::kFloat64; }

 private:
  // A block of C, or a part of the sums that it is made of.
  struct Part {
    LtProduct product;
    int64_t first_column;
    bool bias, addend;
  };

  std::vector<Part> parts_;          // in this order
  std::optional<CudaKernel> widen_;  // where the bias is narrower than C
  size_t wide_bias_ = 0, bias_element_ = 0;
  int64_t columns_ = 0;
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CUDA_CUDA_PRODUCT_H_
