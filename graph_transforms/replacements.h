// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_GRAPH_TRANSFORMS_REPLACEMENTS_H_
#define CAESURA_GRAPH_TRANSFORMS_REPLACEMENTS_H_

#include <unordered_map>

#include "core/graph/graph.h"

namespace caesura {

// Graph::ReplaceAllUses for many values: nodes read the other value at once, graph outputs (here
// and in all bodies) follow in one sweep at the end.
class Replacements {
 public:
  void Replace(Value* from, Value* to);
  // The values that were replaced must still be there: they are told by their addresses.
  void Finish(Graph& graph) const;

 private:
  std::unordered_map<const Value*, Value*> to_;
};

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_REPLACEMENTS_H_
