// SPDX-License-Identifier: Apache-2.0
// How an error says where it happened.
#ifndef CAESURA_CORE_PLAN_NODE_ERROR_H_
#define CAESURA_CORE_PLAN_NODE_ERROR_H_

#include <string>

#include "core/base/status.h"
#include "core/graph/node.h"
#include "core/providers/execution_provider.h"

namespace caesura {

// "[Op 'node' on provider] what (from the user's source)". A message that names the node already
// keeps one name.
Status AtNode(const Status& status, const Node& node, const std::string& provider);

// "[memory on PROVIDER] what": of an allocation that belongs to no node.
Status AtMemory(const Status& status, const std::string& provider);

// Where it happened, read back from a message that begins with one of the above: the innermost,
// where a node's body has failed. Both empty for other messages.
struct FailurePlace {
  std::string node;      // "Op 'node'", or "memory"
  std::string provider;  // one of `providers`
};
FailurePlace PlaceOf(const Status& status, const ProviderList& providers);

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_NODE_ERROR_H_
