// SPDX-License-Identifier: Apache-2.0
// The place where an error happened: in its message, and as Status::location().
#ifndef CAESURA_CORE_PLAN_NODE_ERROR_H_
#define CAESURA_CORE_PLAN_NODE_ERROR_H_

#include <string>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// "[Op 'node' on provider] what (from the user's source)". A message that names the node already
// keeps one name.
Status AtNode(const Status& status, const Node& node, const std::string& provider);

// "[memory on PROVIDER] what": of an allocation that belongs to no node.
Status AtMemory(const Status& status, const std::string& provider);

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_NODE_ERROR_H_
