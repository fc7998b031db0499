// SPDX-License-Identifier: Apache-2.0
// The second half of planning: who lives how long, who is handed out, and where in the arena the rest goes.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/base/status_macros.h"
#include "core/plan/memory_planner.h"
#include "core/plan/node_error.h"
#include "core/plan/plan_builder.h"

namespace caesura {

void PlanBuilder::FindLastUses() {
  int position = 0;
  for (const auto& node : graph_.nodes()) {
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      last_use_of_[node->inputs()[i]] = position;
      readers_[node->inputs()[i]].push_back({node.get(), position, static_cast<int>(i)});
    }
    for (const Value* input : Graph::ImplicitInputs(*node)) {
      last_use_of_[input] = position;
      readers_[input].push_back({node.get(), position, -1});
    }
    ++position;
  }
  for (const Value* output : graph_.outputs()) {
    last_use_of_[output] = position;
    readers_[output].push_back({nullptr, position, -1});
  }
}

void PlanBuilder::ComputeLifetimes() {
  for (PlannedBuffer& buffer : plan_->buffers_) buffer.first_step = buffer.last_step = -1;
  for (int s = 0; s < static_cast<int>(plan_->steps_.size()); ++s) {
    const Step& step = plan_->steps_[s];
    for (uint32_t a = 0; a < step.input_count + step.output_count; ++a) {
      PlannedBuffer& buffer = plan_->buffers_[plan_->arguments_[step.first_argument + a]];
      if (a >= step.input_count && buffer.first_step < 0) buffer.first_step = s;
      buffer.last_step = s;
    }
  }
  const int end = static_cast<int>(plan_->steps_.size());
  for (const Yield::Item& item : plan_->fetches_) plan_->buffers_[plan_->values_[item.value].buffer].last_step = end;
}

// A value that nobody reads after it is handed out gets a buffer of its own, which the caller then owns.
void PlanBuilder::MoveFetches() {
  int fetch_count = 0;
  std::unordered_set<uint32_t> moved;
  auto try_move = [&](Yield::Item& item, int at) {
    const uint32_t buffer = plan_->values_[item.value].buffer;
    PlannedBuffer& planned = plan_->buffers_[buffer];
    const bool own = planned.kind == Kind::kArena || planned.kind == Kind::kDynamic;
    if (!own || planned.device != item.device || planned.last_step > at || !moved.insert(buffer).second) return;
    item.move = true;
    if (planned.kind == Kind::kArena) {
      planned.kind = Kind::kFetch;
      planned.index = fetch_count++;
    }
  };
  for (Yield& yield : plan_->yields_) {
    for (Yield::Item& item : yield.outputs) try_move(item, yield.step);
  }
  for (Yield::Item& item : plan_->fetches_) try_move(item, static_cast<int>(plan_->steps_.size()));
}

void PlanBuilder::AddReleases() {
  for (uint32_t id = 1; id < plan_->values_.size(); ++id) {
    const PlannedBuffer& buffer = plan_->buffers_[plan_->values_[id].buffer];
    const bool held = buffer.kind == Kind::kDynamic || buffer.kind == Kind::kResume;
    if (held && buffer.last_step >= 0 && buffer.last_step < static_cast<int>(plan_->steps_.size())) {
      plan_->steps_[buffer.last_step].release.push_back(id);
    }
  }
}

// Inputs that all lie in the arena are laid out as one block. Otherwise none may: what callers own must lie right.
Result<bool> PlanBuilder::IsPlannedGroup(const ContiguousGroup& group) const {
  size_t planned = 0;
  std::string why;
  std::unordered_set<uint32_t> seen;
  for (uint32_t id : group.buffers) {
    const Kind kind = plan_->buffers_[id].kind;
    if (kind == Kind::kArena) ++planned;
    if (kind == Kind::kDynamic || kind == Kind::kResume || kind == Kind::kCached) why = "is known only in the run";
    if (!seen.insert(id).second) why = "is another one, or a view of it";
  }
  if (planned > 0 && planned < group.buffers.size()) why = "comes from outside while others are computed";
  if (why.empty()) return planned > 0;
  const Step& step = plan_->steps_[group.step];
  return AtNode(Unsupported("wants its inputs in one block, but one of them " + why), *step.node,
                step.provider->name());
}

Status PlanBuilder::PlaceBuffers() {
  for (int device = 0; device < static_cast<int>(plan_->devices_.size()); ++device) {
    RETURN_IF_ERROR(PlaceBuffers(device));
  }
  return {};
}

Status PlanBuilder::PlaceBuffers(int device) {
  std::vector<MemoryBlock> blocks;
  std::vector<int> block_of(plan_->buffers_.size(), -1);
  std::vector<size_t> inside(plan_->buffers_.size(), 0);
  for (const ContiguousGroup& group : plan_->contiguous_) {
    ASSIGN_OR_RETURN(const bool planned, IsPlannedGroup(group));
    if (!planned || plan_->buffers_[group.buffers.front()].device != device) continue;
    MemoryBlock block{0, INT_MAX, -1};
    for (uint32_t id : group.buffers) {
      const PlannedBuffer& buffer = plan_->buffers_[id];
      if (block_of[id] >= 0) {
        return Unsupported(plan_->steps_[group.step].node->Label() +
                           " wants its inputs in one block, but another node wants one of them in another block");
      }
      inside[id] = block.bytes;
      block_of[id] = static_cast<int>(blocks.size());
      block.bytes += buffer.bytes;
      block.first = std::min(block.first, buffer.first_step);
      block.last = std::max(block.last, buffer.last_step);
    }
    blocks.push_back(block);
  }
  for (size_t id = 1; id < plan_->buffers_.size(); ++id) {
    const PlannedBuffer& buffer = plan_->buffers_[id];
    if (buffer.kind != Kind::kArena || buffer.device != device || block_of[id] >= 0 || buffer.last_step < 0) continue;
    block_of[id] = static_cast<int>(blocks.size());
    blocks.push_back({buffer.bytes, buffer.first_step, buffer.last_step});
  }
  const size_t first_scratch = blocks.size();
  for (int s = 0; s < static_cast<int>(plan_->steps_.size()); ++s) {
    blocks.push_back({plan_->steps_[s].device == device ? scratch_bytes_[s] : 0, s, s});
  }
  plan_->arenas_.push_back(PlanMemory(blocks, plan_->options_.reuse_memory));
  for (size_t id = 1; id < plan_->buffers_.size(); ++id) {
    if (block_of[id] >= 0) plan_->buffers_[id].offset = blocks[block_of[id]].offset + inside[id];
  }
  for (size_t s = 0; s < plan_->steps_.size(); ++s) {
    if (plan_->steps_[s].device == device) plan_->steps_[s].scratch_offset = blocks[first_scratch + s].offset;
  }
  return {};
}

namespace {

// FNV-1a
class Hash {
 public:
  void Mix(const std::string& text) {
    for (unsigned char c : text) value_ = (value_ ^ c) * 1099511628211ull;
    value_ = (value_ ^ 0x1f) * 1099511628211ull;  // so that "ab" "c" is not "a" "bc"
  }
  void Mix(uint64_t number) { Mix(std::to_string(number)); }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 14695981039346656037ull;
};

// Bodies and tensors are told apart by their presence alone.
void MixAttribute(Hash& hash, const std::string& name, const Attribute& attribute) {
  hash.Mix(name);
  hash.Mix(attribute.index());
  if (const auto* v = std::get_if<int64_t>(&attribute)) hash.Mix(std::to_string(*v));
  if (const auto* v = std::get_if<float>(&attribute)) hash.Mix(std::to_string(*v));
  if (const auto* v = std::get_if<std::string>(&attribute)) hash.Mix(*v);
  if (const auto* v = std::get_if<std::vector<int64_t>>(&attribute)) {
    for (int64_t i : *v) hash.Mix(std::to_string(i));
  }
  if (const auto* v = std::get_if<std::vector<float>>(&attribute)) {
    for (float f : *v) hash.Mix(std::to_string(f));
  }
}

}  // namespace

void PlanBuilder::Fingerprint() {
  Hash hash;
  hash.Mix(static_cast<uint64_t>(plan_->threads_));
  std::unordered_map<const KernelDef*, uint64_t> places;  // which of an op's kernels was chosen
  for (const auto& provider : plan_->providers_) {
    hash.Mix(provider->rounding());
    for (const KernelDef& def : provider->kernels().defs()) places[&def] = places.size() + 1;
  }
  for (const Step& step : plan_->steps_) {
    hash.Mix(step.node->op_type() + "/" + step.provider->name());
    hash.Mix(static_cast<uint64_t>(step.kind));
    hash.Mix(step.def == nullptr ? 0 : places[step.def]);
    for (const auto& [name, attribute] : step.node->attributes()) MixAttribute(hash, name, attribute);
    for (uint32_t a = step.first_argument; a < step.first_argument + step.input_count + step.output_count; ++a) {
      const PlannedValue& value = plan_->values_[plan_->argument_values_[a]];
      hash.Mix(plan_->arguments_[a]);
      hash.Mix(DTypeName(value.dtype) + value.shape.ToString());
      if (!value.layout.dense()) hash.Mix(Shape(value.layout.strides).ToString() + std::to_string(value.layout.offset));
    }
  }
  plan_->fingerprint_ = hash.value();
}

}  // namespace caesura
