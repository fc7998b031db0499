// SPDX-License-Identifier: Apache-2.0
// Questions about nodes that several passes ask.
#ifndef CAESURA_GRAPH_TRANSFORMS_MATCHING_H_
#define CAESURA_GRAPH_TRANSFORMS_MATCHING_H_

#include "core/graph/graph.h"
#include "core/providers/cpu_provider.h"

namespace caesura {

// The node of ONNX's `op_type` that makes the value, or null. `value` may be null.
inline const Node* MadeBy(const Value* value, const char* op_type) {
  const Node* node = value == nullptr ? nullptr : value->producer();
  return node != nullptr && node->Is(op_type) ? node : nullptr;
}

// True if the node casts halves to float32.
inline bool IsWideningCast(const Node& node) {
  const Value* from = node.input(0);
  const bool half =
      from != nullptr && (from->dtype() == DType::kFloat16 || from->dtype() == DType::kBFloat16);
  return half && node.Is("Cast") && node.output(0)->dtype() == DType::kFloat32;
}

// True if one node of another op may do the work of both: they are pinned alike, and not to a
// provider that may not know that op.
inline bool MayBecomeOne(const Node& a, const Node& b) {
  return a.provider() == b.provider() && (a.provider().empty() || a.provider() == kCpuProviderName);
}

// True for a Gemm that is A W + row, with W as it is or transposed.
inline bool IsPlainGemm(const Node& node) {
  if (!node.Is("Gemm") || node.Attr<int64_t>("transA", 0) != 0 ||
      node.Attr<float>("alpha", 1.0f) != 1.0f)
    return false;
  const Value* c = node.input(2);
  if (c == nullptr) return true;
  const auto& type = node.output(0)->type();
  return node.Attr<float>("beta", 1.0f) == 1.0f && c->type().shape &&
         c->type().shape->size() == 1 && type.shape && (*c->type().shape)[0].known() &&
         (*c->type().shape)[0] == type.shape->back();
}

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_MATCHING_H_
