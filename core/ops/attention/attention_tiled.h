// SPDX-License-Identifier: Apache-2.0
// Attention without a matrix of all scores: blocks of keys are met one after the other, with a
// running maximum and sum for each query (the online softmax of Dao et al., "FlashAttention",
// 2022). Memory grows with T, not with T^2.
#ifndef CAESURA_CORE_OPS_ATTENTION_ATTENTION_TILED_H_
#define CAESURA_CORE_OPS_ATTENTION_ATTENTION_TILED_H_

#include "core/ops/attention/attention_spec.h"

namespace caesura {

// Float32 arithmetic on float32, float16 or bfloat16 tensors of any layout; where the machine has
// AMX, factors of products are bfloat16 if the tensors are. All forms but softcap. Results do not
// depend on the number of threads.
class TiledAttention {
 public:
  // Y is written as `spec.y` says. `spec.k` and `spec.v` hold `spec.total` positions: the past is
  // in them. `whole`: the same with the mask as it stands, where `spec` says causal for it.
  static TiledAttention Make(KernelInfo& info, DType dtype, const AttentionSpec& spec,
                             const AttentionSpec& whole);

  // `lse`: for each query the logarithm of the sum of its scores' exponentials, [batch, heads,
  // queries], +inf where it may look nowhere and Y is 0 for that (NaN where Y is NaN); may be null,
  // as may `mask` and `lengths` where `whole` has none.
  struct Tensors {
    const void *q, *k, *v, *mask;
    const int64_t* lengths;
    void* y;
    float* lse;
  };
  void Run(KernelContext& context, const Tensors& tensors) const;

 private:
  AttentionSpec spec_, whole_;
  DType dtype_ = DType::kFloat32;
  int threads_ = 1;
  bool by_amx_ = false;
  int64_t floats_ = 0;  // of a thread's memory
  size_t scratch_ = 0;
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_ATTENTION_ATTENTION_TILED_H_
