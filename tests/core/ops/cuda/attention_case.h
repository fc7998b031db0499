// SPDX-License-Identifier: Apache-2.0
// Attention that cuDNN takes: each case runs on the stand-in, and its graphs are built by cuDNN
// itself.
#ifndef CAESURA_TESTS_CORE_OPS_CUDA_ATTENTION_CASE_H_
#define CAESURA_TESTS_CORE_OPS_CUDA_ATTENTION_CASE_H_

#include <string>
#include <vector>

#include "core/ops/attention/attention_spec.h"

namespace caesura::testing {

struct AttentionCase {
  const char* name;
  DType dtype = DType::kBFloat16;
  int64_t batch = 2, heads = 2, key_heads = 2, queries = 6, keys = 6, size = 8, value_size = 8;
  bool causal = false;
  bool packed = false;  // of rank 3, with heads inside the last dim
  double scale = 0;     // 0: the natural one

  Shape Of(int64_t of_heads, int64_t positions, int64_t of_size) const {
    return packed ? Shape{batch, positions, of_heads * of_size}
                  : Shape{batch, of_heads, positions, of_size};
  }
  Shape q() const { return Of(heads, queries, size); }
  Shape k() const { return Of(key_heads, keys, size); }
  Shape v() const { return Of(key_heads, keys, value_size); }
  Shape y() const { return Of(heads, queries, value_size); }

  AttentionSpec Spec() const {
    AttentionSpec s;
    s.batch = batch;
    s.total = keys;
    s.q = HeadsOf(q(), {}, heads);
    s.k = HeadsOf(k(), {}, key_heads);
    s.v = HeadsOf(v(), {}, key_heads);
    s.y = HeadsOf(y(), {}, heads);
    s.scale = scale != 0 ? scale : 0.25;
    s.causal = causal;
    return s;
  }
};

inline std::vector<AttentionCase> FusedAttentionCases() {
  return {
      {.name = "Plain"},
      {.name = "Causal", .causal = true},
      {.name = "CausalInFloat16", .dtype = DType::kFloat16, .causal = true, .packed = true},
      {.name = "Packed", .packed = true, .scale = 0.5},
      {.name = "Grouped", .heads = 4, .key_heads = 2, .causal = true},
      {.name = "GroupedPacked", .heads = 4, .key_heads = 1, .packed = true},
      {.name = "MoreKeys", .queries = 3, .keys = 7, .causal = true},
      {.name = "FewerKeys", .queries = 7, .keys = 3, .causal = true},
      {.name = "WiderValues", .size = 8, .value_size = 16},
      {.name = "OneQuery", .queries = 1, .keys = 5},
  };
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_OPS_CUDA_ATTENTION_CASE_H_
