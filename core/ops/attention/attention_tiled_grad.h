// SPDX-License-Identifier: Apache-2.0
// The gradient of attention without a matrix of all scores: tiles of probabilities are made again
// from Q, K and the logarithm of the sum of exponentials that the forward pass kept (Dao et al.,
// "FlashAttention", 2022).
#ifndef CAESURA_CORE_OPS_ATTENTION_ATTENTION_TILED_GRAD_H_
#define CAESURA_CORE_OPS_ATTENTION_ATTENTION_TILED_GRAD_H_

#include "core/ops/attention/attention_spec.h"

namespace caesura {

// Float32 arithmetic on float32, float16 or bfloat16 tensors of any layout, as TiledAttention's.
// All forms but softcap and the mask's own gradient. Results repeat for a given number of threads.
class TiledAttentionGrad {
 public:
  // The layouts of what is read are the spec's, with `spec.y` that of Y; `d` are those of the
  // gradients.
  struct Layouts {
    HeadLayout dy, dq, dk, dv;
  };
  static TiledAttentionGrad Make(KernelInfo& info, DType dtype, const AttentionSpec& spec,
                                 const AttentionSpec& whole, const Layouts& d);

  // `mask` is null where the spec has none; so are gradients that nobody wants.
  struct Tensors {
    const void *dy, *q, *k, *v, *mask, *y;
    const float* lse;
    void *dq, *dk, *dv;
  };
  void Run(KernelContext& context, const Tensors& tensors) const;

 private:
  AttentionSpec spec_, whole_;
  Layouts d_;
  DType dtype_ = DType::kFloat32;
  int threads_ = 1;
  int64_t parts_ = 1;  // that the query tiles of a key head are cut into
  bool by_amx_ = false;
  int64_t floats_ = 0;  // of a thread's memory
  size_t scratch_ = 0;
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_ATTENTION_ATTENTION_TILED_GRAD_H_
