// SPDX-License-Identifier: Apache-2.0
#include "training/step/gradient_reduction.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <deque>
#include <map>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>

#include "graph_transforms/order/collective_order.h"
#include "graph_transforms/order/node_order.h"

namespace caesura {
namespace {

// Collectives that early commit has under way at most.
int64_t BytesOf(const Value& value) {
  assert(value.type().is_tensor() && value.type().shape);
  int64_t bytes = static_cast<int64_t>(DTypeSize(value.dtype()));
  for (const Dim& dim : *value.type().shape) {
    assert(dim.known());
    bytes *= dim.value;
  }
  return bytes;
}

}  // namespace

Node* CollectiveWriter::Add(const char* op_type, const std::vector<Value*>& inputs,
                            AttributeMap attributes, int outputs) {
  Node* node =
      graph_.AddOp(op_type, inputs, std::move(attributes), kCaesuraDomain, outputs, op_type);
  node->set_phase(Phase::kOptimizer);
  node->set_provider(provider_);
  for (int i = 0; i < outputs && i < static_cast<int>(inputs.size()); ++i)
    node->output(i)->set_type(inputs[i]->type());
  return node;
}

void CollectiveWriter::Exchange(const char* kind, const std::vector<Value**>& bucket, int64_t row) {
  std::vector<Value*> values;
  for (Value** value : bucket) values.push_back(*value);
  const int count = static_cast<int>(values.size());
  AttributeMap attributes = {{"kind", std::string(kind)}, {"number", count_}};
  if (row >= 0) attributes["row"] = row;
  const Node* start = Add("CollectiveStart", values, std::move(attributes), count);
  const Node* wait = Add("CollectiveWait", start->outputs(), {{"number", count_++}}, count);
  for (size_t i = 0; i < bucket.size(); ++i) *bucket[i] = wait->output(static_cast<int>(i));
  awaited_.insert(awaited_.end(), wait->outputs().begin(), wait->outputs().end());
  waited_.push_back(wait->output(0));
}

std::vector<std::vector<int>> CollectiveWriter::Buckets(const std::vector<Value*>& values,
                                                        const std::vector<int>& kinds,
                                                        int64_t bucket_bytes) const {
  const auto positions = Positions(graph_);
  const auto ready = [&](int i) {
    return values[i]->producer() == nullptr ? -1 : positions.at(values[i]->producer());
  };
  std::vector<int> ordered(values.size());
  std::iota(ordered.begin(), ordered.end(), 0);
  std::stable_sort(ordered.begin(), ordered.end(),
                   [&](int a, int b) { return ready(a) < ready(b); });
  std::map<int, std::pair<std::vector<int>, int64_t>> open;  // bucket and bytes
  std::vector<std::vector<int>> buckets;
  for (const int i : ordered) {
    auto& [bucket, bytes] = open[kinds[i]];
    bucket.push_back(i);
    bytes += BytesOf(*values[i]);
    if (bytes < bucket_bytes) continue;
    buckets.push_back(std::exchange(bucket, {}));
    bytes = 0;
  }
  for (auto& [kind, rest] : open) {
    if (!rest.first.empty()) buckets.push_back(std::move(rest.first));
  }
  return buckets;
}

std::vector<std::vector<int>> CollectiveWriter::BucketsByDType(const std::vector<Value**>& values,
                                                               int64_t bucket_bytes) const {
  std::vector<Value*> current;
  std::vector<int> kinds;
  for (Value** value : values) {
    current.push_back(*value);
    kinds.push_back(static_cast<int>((*value)->dtype()));
  }
  return Buckets(current, kinds, bucket_bytes);
}

std::vector<std::vector<int>> CollectiveWriter::AllReduce(const std::vector<Value**>& values,
                                                          int64_t bucket_bytes) {
  for ([[maybe_unused]] Value* const* value : values) assert(IsDifferentiable((*value)->dtype()));
  const auto buckets = BucketsByDType(values, bucket_bytes);
  for (const std::vector<int>& indices : buckets) {
    std::vector<Value**> bucket;
    for (const int i : indices) bucket.push_back(values[i]);
    Exchange("all_reduce", bucket);
  }
  return buckets;
}

Node* CollectiveWriter::StartBlock(const char* op_type, const std::vector<Value*>& bucket,
                                   const BucketLayout& layout, int64_t first, int64_t row) {
  const DType dtype = bucket.front()->dtype();
  const int count = layout.tensors();
  AttributeMap attributes = {{"number", count_++}, {"ranks", int64_t{layout.ranks()}}};
  if (row >= 0) attributes["row"] = row;
  Node* start = Add(op_type, bucket, std::move(attributes), count + 2);
  start->output(0)->set_type(ValueType::Tensor(dtype, Shape{first}));
  for (int i = 0; i < count; ++i) start->output(1 + i)->set_type(bucket[i]->type());
  start->output(1 + count)->set_type(
      ValueType::Tensor(dtype, Shape{layout.all() - layout.padding_offset()}));
  return start;
}

std::vector<std::vector<int>> CollectiveWriter::OrderedSum(const std::vector<Value**>& values,
                                                           int64_t bucket_bytes, int ranks) {
  const auto buckets = BucketsByDType(values, bucket_bytes);
  std::vector<const Node*> starts;
  for (const auto& bucket : buckets) {
    std::vector<Value*> inputs;
    std::vector<int64_t> elements;
    for (const int i : bucket) {
      const Value& value = *inputs.emplace_back(*values[i]);
      elements.push_back(BytesOf(value) / static_cast<int64_t>(DTypeSize(value.dtype())));
    }
    const BucketLayout layout(std::move(elements), inputs.front()->dtype(), ranks);
    starts.push_back(StartBlock("OrderedSumStart", inputs, layout, layout.all()));
  }
  // After all starts: each wait starts a collective, too.
  for (size_t b = 0; b < buckets.size(); ++b) {
    const int count = static_cast<int>(buckets[b].size());
    const Node* wait = Add("OrderedSumWait", starts[b]->outputs(),
                           {{"number", starts[b]->Attr<int64_t>("number", 0)},
                            {"ranks", starts[b]->Attr<int64_t>("ranks", 0)}},
                           count + 1);
    wait->output(count)->set_type(starts[b]->output(0)->type());
    for (int i = 0; i < count; ++i) {
      Value*& value = *values[buckets[b][i]];
      wait->output(i)->set_type(value->type());
      value = wait->output(i);
      awaited_.push_back(wait->output(i));
    }
  }
  return buckets;
}

std::vector<Value*> CollectiveWriter::ReduceScatter(const std::vector<std::vector<Value*>>& buckets,
                                                    const std::vector<BucketLayout>& layouts,
                                                    const std::vector<int64_t>& rows) {
  std::vector<Value*> parts;
  const Node* under_way = nullptr;
  const auto wait = [&] {
    AttributeMap attributes = {{"number", under_way->Attr<int64_t>("number", 0)},
                               {"ranks", under_way->Attr<int64_t>("ranks", 0)}};
    parts.push_back(
        Add("ReduceScatterWait", under_way->outputs(), std::move(attributes), 1)->output(0));
  };
  for (size_t b = 0; b < buckets.size(); ++b) {
    if (under_way != nullptr) wait();
    under_way =
        StartBlock("ReduceScatterStart", buckets[b], layouts[b], layouts[b].part(), rows[b]);
  }
  if (under_way != nullptr) wait();
  awaited_.insert(awaited_.end(), parts.begin(), parts.end());
  return parts;
}

Value* CollectiveWriter::OwnPart(const std::vector<Value*>& tensors, const BucketLayout& layout) {
  Value* part = Add("OwnPart", tensors, {{"ranks", int64_t{layout.ranks()}}}, 1)->output(0);
  part->set_type(ValueType::Tensor(tensors.front()->dtype(), Shape{layout.part()}));
  return part;
}

void CollectiveWriter::AllGather(Value* part, const std::vector<Value*>& tensors,
                                 const BucketLayout& layout, int64_t row) {
  FinishGather();
  AttributeMap attributes = {{"number", count_++}, {"ranks", int64_t{layout.ranks()}}};
  if (row >= 0) attributes["row"] = row;
  Value* parts = Add("AllGatherStart", {part}, attributes, 1)->output(0);
  parts->set_type(ValueType::Tensor(part->dtype(), Shape{layout.all()}));
  gather_ = {parts, part};
  gather_.insert(gather_.end(), tensors.begin(), tensors.end());
  gather_attributes_ = attributes;
}

void CollectiveWriter::FinishGather() {
  if (gather_.empty()) return;
  constexpr int kFirst = 2;
  const int count = static_cast<int>(gather_.size()) - kFirst;
  const Node* wait = Add("AllGatherWait", gather_, std::move(gather_attributes_), count);
  for (int i = 0; i < count; ++i) wait->output(i)->set_type(gather_[kFirst + i]->type());
  gather_.clear();
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

Value* CollectiveWriter::AgreedAtLast(Value* value) {
  std::vector<Value*> inputs = {value};
  inputs.insert(inputs.end(),
                waited_.end() - std::min<ptrdiff_t>(kCollectivesUnderWay, std::ssize(waited_)),
                waited_.end());
  return Add("AgreeToCommit", inputs, {}, 1)->output(0);
}

}  // namespace caesura
