// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/order/collective_order.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph_transforms/order/node_order.h"

namespace caesura {
namespace {

bool StartsCollective(const Node& node) {
  return node.Is("CollectiveStart", kCaesuraDomain) ||
         node.Is("ReduceScatterStart", kCaesuraDomain) ||
         node.Is("OrderedSumStart", kCaesuraDomain) || node.Is("OrderedSumWait", kCaesuraDomain) ||
         node.Is("AllGatherStart", kCaesuraDomain);
}

// True if the node prepares a gradient for its exchange.
bool PreparesCollective(const Node& node) {
  if (node.Is("AccumulatedSum", kCaesuraDomain) || node.Is("PairwiseSum", kCaesuraDomain))
    return true;
  return node.Is("Cast") && !node.output(0)->uses().empty() &&
         StartsCollective(*node.output(0)->uses().front().node);
}

// A node's key is the position of the node that it shall stand after; nodes of one key keep their
// order.
class CollectiveOrderPass : public Pass {
 public:
  explicit CollectiveOrderPass(bool early) : early_(early) {}
  const char* name() const override { return "collective_order"; }
  Result<bool> Run(Model& model) override {
    Graph& graph = *model.graph;
    std::unordered_map<const Node*, int> keys = Positions(graph);
    std::vector<const Node*> waits;     // since the start before
    std::deque<const Node*> under_way;  // the waits of early commit
    int last_start = 0;
    for (const auto& node : graph.nodes()) {
      int& key = keys.at(node.get());
      const bool starts = StartsCollective(*node);
      if (starts || PreparesCollective(*node)) {
        key = starts ? last_start : 0;
        for (const Value* input : node->inputs()) {
          if (input->producer() != nullptr) key = std::max(key, keys.at(input->producer()));
        }
        if (starts) last_start = key;
      }
      if (node->Is("ReduceScatterWait", kCaesuraDomain)) waits.push_back(node.get());
      if (early_ && node->Is("CollectiveWait", kCaesuraDomain)) under_way.push_back(node.get());
      if (!starts) continue;
      if (std::ssize(under_way) == kCollectivesUnderWay) {
        keys.at(under_way.front()) = key;
        under_way.pop_front();
      }
      for (const Node* wait : std::exchange(waits, {})) {
        if (node->Is("ReduceScatterStart", kCaesuraDomain)) keys.at(wait) = key;
      }
    }
    return SortNodes(graph, keys);
  }

 private:
  const bool early_;
};

}  // namespace

std::shared_ptr<Pass> MakeCollectiveOrderPass(bool early) {
  return std::make_shared<CollectiveOrderPass>(early);
}

}  // namespace caesura
