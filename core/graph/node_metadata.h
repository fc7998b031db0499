// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_CORE_GRAPH_NODE_METADATA_H_
#define CAESURA_CORE_GRAPH_NODE_METADATA_H_

#include "core/graph/node.h"

namespace caesura {

// Gives `to` all that `from` says beside its computation: phase, source and provider. For a node
// that stands in the place of `from`, or is a copy of it.
inline void CopyMetadata(const Node& from, Node* to) {
  to->set_phase(from.phase());
  to->set_source(from.source());
  to->set_provider(from.provider());
}

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_NODE_METADATA_H_
