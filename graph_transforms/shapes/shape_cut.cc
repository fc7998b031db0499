// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/shapes/shape_cut.h"

#include <algorithm>
#include <functional>

namespace caesura {

// A vertex for making a value and one for having it, with the edge between them that a copy cuts.
class ShapeCut::Network {
 public:
  explicit Network(std::function<int(const Value*)> cost_of_copy)
      : cost_(std::move(cost_of_copy)) {}

  int In(const Value* value) {
    auto [it, fresh] = in_.try_emplace(value, 0);
    if (fresh) {
      it->second = cut_.AddVertex();
      cut_.AddEdge(it->second, cut_.AddVertex(), cost_(value));
    }
    return it->second;
  }
  int Out(const Value* value) { return In(value) + 1; }
  // Adds a value that is there from the start. Once for each value.
  int Source(const Value* value) {
    if (sources_.insert(value).second) Connect(MinCut::kSource, In(value));
    return Out(value);
  }
  void Connect(int from, int to) { cut_.AddEdge(from, to, MinCut::kUnlimited); }

  // The cut values.
  std::vector<const Value*> Solve(bool close_to_source) {
    cut_.Solve();
    const std::vector<bool> side = close_to_source ? cut_.SourceSide() : cut_.SinkSide();
    std::vector<const Value*> out;
    for (const auto& [value, in] : in_) {
      if (side[in] == close_to_source && side[in + 1] != close_to_source) out.push_back(value);
    }
    return out;
  }

 private:
  std::function<int(const Value*)> cost_;
  MinCut cut_;
  std::unordered_map<const Value*, int> in_;
  std::unordered_set<const Value*> sources_;
};

ShapeCut::ShapeCut(const ShapeChains& chains, bool move_bodies) : chains_(chains) {
  for (const Graph* graph : chains_.graphs()) {
    for (const Value* value : chains_.values(graph)) {
      if (!IsLink(value)) continue;
      std::unordered_set<const Graph*> readers;
      for (const ValueRead& read : chains_.reads(value)) {
        if (readers.insert(read.graph).second) read_in_[read.graph].push_back(value);
      }
    }
  }
  if (move_bodies) SettleBodyResults();
  for (const BodyResult& on : chains_.body_results()) {
    for (const auto& [source, graph] : on.sources) {
      if (!moved_.count(&on)) fixed_.insert(source);
    }
  }
  available_.clear();
  for (const Graph* graph : chains_.graphs()) {
    CutToHost(graph);
    FindAvailable(graph);
  }
  for (auto graph = chains_.graphs().rbegin(); graph != chains_.graphs().rend(); ++graph)
    CutToDevice(*graph);
  for (const Node* node : chains_.nodes()) {  // no reader minds
    if (!chains_.IsMovable(node) || on_host_.count(node) || on_device_.count(node)) continue;
    for (const Value* output : node->outputs()) {
      if (output != nullptr) RunOnHost({output, output->graph()});
    }
  }
}

// --- what If and Loop hand on ---

// All links that somebody on the host, perhaps after other links, reads.
std::unordered_set<const Value*> ShapeCut::NeededOnHost() const {
  std::unordered_map<const Value*, const BodyResult*> handed;
  for (const BodyResult& on : chains_.body_results()) {
    for (const Value* result : on.results) handed[result] = &on;
  }
  std::vector<const Value*> open;
  for (const Graph* graph : chains_.graphs()) {
    for (const Value* value : chains_.values(graph)) {
      const std::vector<ValueRead>& reads = chains_.reads(value);
      const bool read = std::any_of(reads.begin(), reads.end(),
                                    [](const ValueRead& r) { return !r.anywhere && r.on_host; });
      if (read && IsLink(value)) open.push_back(value);
    }
  }
  std::unordered_set<const Value*> needed(open.begin(), open.end());
  auto visit = [&](const Value* value) {
    if (IsLink(value) && needed.insert(value).second) open.push_back(value);
  };
  while (!open.empty()) {
    const Value* value = open.back();
    open.pop_back();
    if (auto on = handed.find(value); on != handed.end()) {
      for (const auto& [source, graph] : on->second->sources) visit(source);
      for (const Value* result : on->second->results) visit(result);
    }
    if (!chains_.IsMovable(value->producer())) continue;
    for (const Value* input : value->producer()->inputs()) visit(input);
  }
  return needed;
}

// Begins with all that is needed on the host and takes out, until nothing changes, what some source
// is missing for.
void ShapeCut::SettleBodyResults() {
  const std::unordered_set<const Value*> needed = NeededOnHost();
  for (const BodyResult& on : chains_.body_results()) {
    auto fits = [&](const Value* value) { return IsLink(value) && !chains_.IsOnHost(value); };
    const bool all = std::all_of(on.results.begin(), on.results.end(), fits);
    const bool any = std::any_of(on.results.begin(), on.results.end(),
                                 [&](const Value* value) { return needed.count(value) > 0; });
    if (!all || !any) continue;
    moved_.insert(&on);
    settled_.insert(on.results.begin(), on.results.end());
  }
  for (bool changed = !moved_.empty(); changed;) {
    changed = false;
    available_.clear();
    for (const Graph* graph : chains_.graphs()) FindAvailable(graph);
    for (const BodyResult& on : chains_.body_results()) {
      const bool made = std::all_of(on.sources.begin(), on.sources.end(), [&](const auto& source) {
        return IsAvailable(source.first, source.second);
      });
      if (made || moved_.erase(&on) == 0) continue;
      for (const Value* result : on.results) settled_.erase(result);
      changed = true;
    }
  }
}

void ShapeCut::FindAvailable(const Graph* graph) {
  for (const Value* value : chains_.values(graph)) {
    if (!IsLink(value)) continue;
    bool made = StartsOnHost(value);
    if (!made && chains_.IsMovable(value->producer())) {
      const std::vector<Value*>& inputs = value->producer()->inputs();
      made = std::all_of(inputs.begin(), inputs.end(), [&](const Value* input) {
        return input == nullptr || IsAvailable(input, graph);
      });
    }
    if (made) available_.insert(value);
  }
}

// --- the two cuts ---

std::vector<const Value*> ShapeCut::Wanted(const Graph* graph, bool on_host) const {
  std::vector<const Value*> wanted;
  auto read_in = read_in_.find(graph);
  if (read_in != read_in_.end()) {
    for (const Value* value : read_in->second) {
      const std::vector<ValueRead>& reads = chains_.reads(value);
      // A movable node reads on the device only where it runs there; its host inputs it needs in
      // any case.
      const bool is = std::any_of(reads.begin(), reads.end(), [&](const ValueRead& read) {
        if (read.graph != graph || read.anywhere || read.on_host != on_host) return false;
        return on_host || !chains_.IsMovable(read.node);
      });
      if (is) wanted.push_back(value);
    }
  }
  for (const BodyResult& on : chains_.body_results()) {
    const bool is_on_host =
        moved_.count(&on) > 0 || on.results.empty() || chains_.IsOnHost(on.results.front());
    for (const auto& [source, where] : on.sources) {
      if (where == graph && IsLink(source) && is_on_host == on_host) wanted.push_back(source);
    }
  }
  return wanted;
}

void ShapeCut::CutToHost(const Graph* graph) {
  Network network([](const Value*) { return 1; });
  auto connect = [&](const Value* value, int to) {
    if (!IsLink(value) || StartsOnHost(value)) return;
    const bool outer = value->graph() != graph;
    if (!outer || !available_.count(value))
      network.Connect(outer ? network.Source(value) : network.Out(value), to);
  };
  for (const Value* value : chains_.values(graph)) {
    if (!IsLink(value) || StartsOnHost(value)) continue;
    if (StaysOnDevice(value)) {
      network.Source(value);
      continue;
    }
    for (const Value* input : value->producer()->inputs()) connect(input, network.In(value));
  }
  const std::vector<const Value*> wanted = Wanted(graph, true);
  for (const Value* value : wanted) connect(value, MinCut::kSink);
  for (const Value* value : network.Solve(/*close_to_source=*/true)) {
    to_host_.insert({value, graph});
    made_on_device_.insert(value);
  }
  for (const Value* value : wanted) RunOnHost({value, graph});
}

void ShapeCut::CutToDevice(const Graph* graph) {
  Network network([&](const Value* value) {
    return StartsOnHost(value) || (available_.count(value) > 0 && !fixed_.count(value))
               ? 1
               : MinCut::kUnlimited;
  });
  auto connect = [&](const Value* value, int to) {
    if (!IsLink(value) || StaysOnDevice(value)) return;
    if (StartsOnHost(value)) network.Connect(network.Source(value), to);
    else if (value->graph() == graph) network.Connect(network.Out(value), to);
  };
  std::vector<const Value*> wanted = Wanted(graph, false);
  for (const Value* value : chains_.values(graph)) {
    if (!IsLink(value) || StaysOnDevice(value) || StartsOnHost(value)) continue;
    const Node& node = *value->producer();
    for (int i = 0; i < static_cast<int>(node.inputs().size()); ++i) {
      if (!chains_.ReadsOnHost(node, i)) connect(node.input(i), network.In(value));
    }
    // Nobody says where it is to be; the host cannot make it without a copy.
    if (!on_host_.count(&node) && !available_.count(value)) wanted.push_back(value);
    if (made_on_device_.count(value)) network.Connect(network.In(value), MinCut::kSink);
  }
  for (const Value* value : wanted) connect(value, MinCut::kSink);
  for (const Value* value : network.Solve(/*close_to_source=*/false))
    to_device_.insert({value, graph});
  for (const Value* value : chains_.values(graph)) {
    if (made_on_device_.count(value)) RunOnDevice({value, graph});
  }
  for (const Value* value : wanted) RunOnDevice({value, graph});
}

void ShapeCut::RunOnHost(const Seen& first) {
  std::vector<Seen> open = {first};
  while (!open.empty()) {
    const Seen seen = open.back();
    open.pop_back();
    const Value* value = seen.first;
    if (!IsLink(value) || StartsOnHost(value) || to_host_.count(seen)) continue;
    if (!chains_.IsMovable(value->producer()) || !on_host_.insert(value->producer()).second)
      continue;
    for (const Value* input : value->producer()->inputs()) open.push_back({input, value->graph()});
  }
}

void ShapeCut::RunOnDevice(const Seen& first) {
  const Graph* graph = first.second;
  std::vector<const Value*> open = {first.first};
  while (!open.empty()) {
    const Value* value = open.back();
    open.pop_back();
    if (!IsLink(value) || StartsOnHost(value)) continue;
    if (value->graph() != graph) {  // for the outer graph to do
      made_on_device_.insert(value);
      continue;
    }
    if (to_device_.count({value, graph})) {
      RunOnHost({value, graph});
      continue;
    }
    const Node* node = value->producer();
    if (!chains_.IsMovable(node) || !on_device_.insert(node).second) continue;
    for (int i = 0; i < static_cast<int>(node->inputs().size()); ++i) {
      if (!chains_.ReadsOnHost(*node, i)) open.push_back(node->input(i));
    }
  }
}

}  // namespace caesura
