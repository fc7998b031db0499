// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/node_context.h"

namespace caesura::gradient {

AttributeMap NodeContext::Attributes(std::initializer_list<const char*> names) const {
  AttributeMap out;
  for (const char* name : names) {
    auto it = node_.attributes().find(name);
    if (it != node_.attributes().end()) out.insert(*it);
  }
  return out;
}

const Tensor* NodeContext::Constant(int i) const {
  const Value* value = node_.input(i);
  if (value == nullptr) return nullptr;
  const Node* producer = value->producer();
  if (producer != nullptr)
    return producer->Is("Constant") ? producer->FindAttr<Tensor>("value") : nullptr;
  return value->graph()->IsGraphInput(value) ? nullptr : value->graph()->Initializer(value);
}

int NodeContext::Rank(int i) {
  const int rank = KnownRank(node_.input(i)->type());
  if (rank < 0) Refuse("needs the rank of input " + std::to_string(i) + ", which is unknown");
  return rank < 0 ? 0 : rank;
}

void NodeContext::Refuse(const std::string& why) {
  if (refusal_.empty()) refusal_ = why;
}

}  // namespace caesura::gradient
