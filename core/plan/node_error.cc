// SPDX-License-Identifier: Apache-2.0
#include "core/plan/node_error.h"

namespace caesura {

Status AtNode(const Status& status, const Node& node, const std::string& provider) {
  if (status.ok()) return status;
  const std::string bare = node.Label();
  std::string label = bare;
  label.insert(label.size() - 1, " on " + provider);
  const std::string& message = status.message();
  if (message.rfind(label, 0) == 0) return status;
  // The kernel may have named the node already, without the provider.
  const std::string what = message.rfind(bare + " ", 0) == 0 ? message.substr(bare.size() + 1) : message;
  const std::string source = node.source().empty() ? "" : " (from " + node.source() + ")";
  return Status(status.code(), label + " " + what + source);
}

}  // namespace caesura
