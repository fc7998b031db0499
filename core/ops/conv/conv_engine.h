// SPDX-License-Identifier: Apache-2.0
// Convolutions in the three directions that Conv, ConvTranspose and their gradients need. float32
// and bfloat16 run on oneDNN, but for float32 with a group for each channel (conv_depthwise.h);
// float64, int32 and small ones through im2col and Gemm.
#ifndef CAESURA_CORE_OPS_CONV_CONV_ENGINE_H_
#define CAESURA_CORE_OPS_CONV_CONV_ENGINE_H_

#include <optional>

#include "core/ops/conv/conv_depthwise.h"
#include "core/kernels/gemm/dnnl_primitive.h"
#include "core/kernels/gemm/gemm.h"
#include "core/kernels/kernel.h"
#include "core/kernels/windows/conv_geometry.h"

namespace caesura {

// Thread safety: Run may be called from many threads.
class ConvEngine {
 public:
  ConvEngine() = default;
  // kDeclined for float16, for bfloat16 where the chip lacks it (run those through float32), for
  // other dtypes than floats and int32, and for more than three spatial axes. `bias`: Run gets one;
  // forward only.
  static Result<ConvEngine> Make(KernelInfo& info, DType dtype, ConvDirection direction,
                                 const ConvGeometry& geometry, bool bias = false);

  Status Run(KernelContext& context, const void* a, const void* b, const void* bias,
             void* out) const;

 private:
  template <typename T>
  Status RunPlain(KernelContext& context, const T* a, const T* b, const T* bias, T* out) const;

  ConvDirection direction_ = ConvDirection::kForward;
  ConvGeometry geometry_;
  DType dtype_ = DType::kUndefined;
  int threads_ = 1;
  std::optional<DepthwiseConv> depthwise_;
  DnnlCall dnnl_;
  Gemm gemm_;           // of one image and group
  size_t columns_ = 0;  // scratch
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_CONV_CONV_ENGINE_H_
