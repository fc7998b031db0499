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
  const std::string what =
      message.rfind(bare + " ", 0) == 0 ? message.substr(bare.size() + 1) : message;
  const std::string source = node.source().empty() ? "" : " (from " + node.source() + ")";
  return Status(status.code(), label + " " + what + source);
}

Status AtMemory(const Status& status, const std::string& provider) {
  return status.WithPrefix("[memory on " + provider + "] ");
}

FailurePlace PlaceOf(const Status& status, const ProviderList& providers) {
  const std::string& message = status.message();
  FailurePlace place;
  for (size_t at = 0; at < message.size() && message[at] == '[';) {
    size_t first = message.npos, next = message.npos;
    for (const auto& provider : providers) {
      const std::string mark = " on " + provider->name() + "] ";
      const size_t found = message.find(mark, at);
      if (found >= first) continue;
      first = found;
      next = found + mark.size();
      place = {message.substr(at + 1, found - at - 1), provider->name()};
    }
    at = next;
  }
  return place;
}

}  // namespace caesura
