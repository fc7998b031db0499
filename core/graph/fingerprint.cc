// SPDX-License-Identifier: Apache-2.0
#include "core/graph/fingerprint.h"

#include <vector>

namespace caesura {

namespace {

void MixAttribute(Hash& hash, const std::string& name, const Attribute& attribute) {
  hash.Mix(name);
  hash.Mix(attribute.index());
  if (const auto* v = std::get_if<int64_t>(&attribute)) hash.Mix(std::to_string(*v));
  if (const auto* v = std::get_if<float>(&attribute)) hash.Mix(std::to_string(*v));
  if (const auto* v = std::get_if<std::string>(&attribute)) hash.Mix(*v);
  if (const auto* v = std::get_if<std::vector<int64_t>>(&attribute)) {
    for (int64_t i : *v) hash.Mix(std::to_string(i));
  }
  if (const auto* v = std::get_if<std::vector<float>>(&attribute)) {
    for (float f : *v) hash.Mix(std::to_string(f));
  }
}

}  // namespace

void MixNode(Hash& hash, const Node& node) {
  hash.Mix(node.op_type() + "/" + node.domain());
  for (const auto& [name, attribute] : node.attributes()) MixAttribute(hash, name, attribute);
}

}  // namespace caesura
