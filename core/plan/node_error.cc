// SPDX-License-Identifier: Apache-2.0
#include "core/plan/node_error.h"

namespace caesura {

Status AtNode(const Status& status, const Node& node, const std::string& provider) {
  if (status.ok()) return status;
  const std::string bare = node.Label();
  std::string label = bare;
  label.insert(label.size() - 1, " on " + provider);
  const std::string place = bare.substr(1, bare.size() - 2);
  const std::string& message = status.message();
  if (message.rfind(label, 0) == 0) return status.At({place, provider, message}, message);
  // The kernel may have named the node already, without the provider.
  const std::string what =
      message.rfind(bare + " ", 0) == 0 ? message.substr(bare.size() + 1) : message;
  const std::string source = node.source().empty() ? "" : " (from " + node.source() + ")";
  return status.At({place, provider, what + source}, label + " " + what + source);
}

Status AtMemory(const Status& status, const std::string& provider) {
  if (status.ok()) return status;
  return status.At({"memory", provider, status.message()},
                   "[memory on " + provider + "] " + status.message());
}

}  // namespace caesura
