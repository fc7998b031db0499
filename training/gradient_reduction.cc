// SPDX-License-Identifier: Apache-2.0
#include "training/gradient_reduction.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "training/kernels/training_ops.h"

namespace caesura {
namespace {

int64_t BytesOf(const Value& value) {
  int64_t bytes = static_cast<int64_t>(DTypeSize(value.dtype()));
  for (const Dim& dim : *value.type().shape) bytes *= dim.value;
  return bytes;
}

std::unordered_map<const Node*, int> Positions(const Graph& graph) {
  std::unordered_map<const Node*, int> positions;
  for (const auto& node : graph.nodes())
    positions.emplace(node.get(), static_cast<int>(positions.size()));
  return positions;
}

}  // namespace

Node* CollectiveWriter::Add(const char* op_type, const std::vector<Value*>& inputs,
                            AttributeMap attributes, int outputs) {
  Node* node =
      graph_.AddOp(op_type, inputs, std::move(attributes), kTrainingDomain, outputs, op_type);
  node->set_phase(Phase::kOptimizer);
  node->set_provider(provider_);
  for (int i = 0; i < outputs; ++i) node->output(i)->set_type(inputs[i]->type());
  return node;
}

void CollectiveWriter::Exchange(const char* kind, const std::vector<Value**>& bucket) {
  std::vector<Value*> values;
  for (Value** value : bucket) values.push_back(*value);
  const int count = static_cast<int>(values.size());
  const Node* start =
      Add("CollectiveStart", values, {{"kind", std::string(kind)}, {"number", count_}}, count);
  const Node* wait = Add("CollectiveWait", start->outputs(), {{"number", count_++}}, count);
  for (size_t i = 0; i < bucket.size(); ++i) *bucket[i] = wait->output(static_cast<int>(i));
  awaited_.insert(awaited_.end(), wait->outputs().begin(), wait->outputs().end());
}

void CollectiveWriter::AllReduce(const std::vector<Value**>& values, int64_t bucket_bytes) {
  const auto positions = Positions(graph_);
  const auto ready = [&](const Value* value) {
    return value->producer() == nullptr ? -1 : positions.at(value->producer());
  };
  std::vector<Value**> ordered = values;
  std::stable_sort(ordered.begin(), ordered.end(),
                   [&](Value** a, Value** b) { return ready(*a) < ready(*b); });
  std::map<DType, std::pair<std::vector<Value**>, int64_t>> open;  // bucket and bytes
  std::vector<std::vector<Value**>> buckets;
  for (Value** value : ordered) {
    auto& [bucket, bytes] = open[(*value)->dtype()];
    bucket.push_back(value);
    bytes += BytesOf(**value);
    if (bytes < bucket_bytes) continue;
    buckets.push_back(std::exchange(bucket, {}));
    bytes = 0;
  }
  for (auto& [dtype, rest] : open) {
    if (!rest.first.empty()) buckets.push_back(std::move(rest.first));
  }
  for (const auto& bucket : buckets) Exchange("all_reduce", bucket);
}

void CollectiveWriter::Broadcast(const std::vector<Value**>& values) {
  std::map<DType, std::vector<Value**>> buckets;
  for (Value** value : values) buckets[(*value)->dtype()].push_back(value);
  for (const auto& [dtype, bucket] : buckets) Exchange("broadcast", bucket);
}

Value* CollectiveWriter::Agreed(Value* value) {
  std::vector<Value*> inputs = {value};
  inputs.insert(inputs.end(), awaited_.begin(), awaited_.end());
  return Add("AgreeToCommit", inputs, {}, 1)->output(0);
}

namespace {

// A node's key is the position of the node that it shall stand after; nodes of one key keep their
// order.
class CollectiveOrderPass : public Pass {
 public:
  const char* name() const override { return "collective_order"; }
  Result<bool> Run(Model& model) override {
    Graph& graph = *model.graph;
    std::unordered_map<const Node*, int> keys = Positions(graph);
    std::vector<std::pair<int, const Node*>> keyed;
    int last_start = 0;
    for (const auto& node : graph.nodes()) {
      int& key = keys.at(node.get());
      const bool starts = node->Is("CollectiveStart", kTrainingDomain);
      if (starts || node->Is("AccumulatedSum", kTrainingDomain)) {
        key = starts ? last_start : 0;
        for (const Value* input : node->inputs()) {
          if (input->producer() != nullptr) key = std::max(key, keys.at(input->producer()));
        }
        if (starts) last_start = key;
      }
      keyed.emplace_back(key, node.get());
    }
    const auto before = [](const auto& a, const auto& b) { return a.first < b.first; };
    if (std::is_sorted(keyed.begin(), keyed.end(), before)) return false;
    std::stable_sort(keyed.begin(), keyed.end(), before);
    std::vector<const Node*> order;
    for (const auto& [key, node] : keyed) order.push_back(node);
    graph.Reorder(order);
    return true;
  }
};

}  // namespace

std::shared_ptr<Pass> MakeCollectiveOrderPass() { return std::make_shared<CollectiveOrderPass>(); }

}  // namespace caesura
