// SPDX-License-Identifier: Apache-2.0
// The second half of planning: who lives how long, who is handed out, and where in the arena the
// rest goes.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/base/status_macros.h"
#include "core/plan/memory_planner.h"
#include "core/plan/node_error.h"
#include "core/plan/plan_builder.h"

namespace caesura {

bool PlanBuilder::IsWanted(size_t output) const {
  const std::vector<bool>& wanted = plan_->options_.wanted_fetches;
  return wanted.empty() || (output < wanted.size() && wanted[output]);
}

void PlanBuilder::FindNeeded() {
  needed_.assign(graph_.nodes().size(), plan_->options_.wanted_fetches.empty());
  if (plan_->options_.wanted_fetches.empty()) return;
  std::unordered_set<const Value*> read;
  for (size_t i = 0; i < graph_.outputs().size(); ++i) {
    if (IsWanted(i)) read.insert(graph_.outputs()[i]);
  }
  for (size_t i = needed_.size(); i-- > 0;) {
    const Node& node = *graph_.nodes()[i];
    const auto is_read = [&](const Value* output) {
      return output != nullptr && read.count(output) > 0;
    };
    needed_[i] = node.Is("YieldOp", kCaesuraDomain) ||
                 std::any_of(node.outputs().begin(), node.outputs().end(), is_read);
    if (!needed_[i]) continue;
    read.insert(node.inputs().begin(), node.inputs().end());
    for (const Value* input : Graph::ImplicitInputs(node)) read.insert(input);
  }
}

void PlanBuilder::FindReaders() {
  int position = -1;
  for (const auto& node : graph_.nodes()) {
    if (!needed_[++position]) continue;
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      readers_[node->inputs()[i]].push_back({node.get(), position, static_cast<int>(i)});
    }
    for (const Value* input : Graph::ImplicitInputs(*node))
      readers_[input].push_back({node.get(), position, -1});
  }
  ++position;
  for (size_t i = 0; i < graph_.outputs().size(); ++i) {
    if (!IsWanted(i)) continue;
    readers_[graph_.outputs()[i]].push_back({nullptr, position, -1});
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
  for (const Yield::Item& item : plan_->fetches_)
    plan_->buffers_[plan_->values_[item.value].buffer].last_step = end;
}

// A value that nobody reads after it is handed out gets a buffer of its own, which the caller then
// owns.
void PlanBuilder::MoveFetches() {
  int fetch_count = 0;
  std::unordered_set<uint32_t> moved;
  auto try_move = [&](Yield::Item& item, int at) {
    const uint32_t buffer = plan_->values_[item.value].buffer;
    PlannedBuffer& planned = plan_->buffers_[buffer];
    const bool own = planned.kind == Kind::kArena || planned.kind == Kind::kDynamic;
    if (!own || planned.device != item.device || planned.last_step > at ||
        !moved.insert(buffer).second)
      return;
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
    if (held && buffer.last_step >= 0 &&
        buffer.last_step < static_cast<int>(plan_->steps_.size())) {
      plan_->steps_[buffer.last_step].release.push_back(id);
    }
  }
}

// Inputs that all lie in the arena are laid out as one block. Otherwise none may: what callers own
// must lie right.
Result<bool> PlanBuilder::IsPlannedGroup(const ExecutionPlan& plan, const ContiguousGroup& group) {
  size_t planned = 0;
  std::string why;
  std::unordered_set<uint32_t> seen;
  for (uint32_t id : group.buffers) {
    const Kind kind = plan.buffers_[id].kind;
    if (kind == Kind::kArena) ++planned;
    if (kind == Kind::kDynamic || kind == Kind::kResume || kind == Kind::kCached)
      why = "is known only in the run";
    if (!seen.insert(id).second) why = "is another one, or a view of it";
  }
  if (planned > 0 && planned < group.buffers.size())
    why = "comes from outside while others are computed";
  if (why.empty()) return planned > 0;
  const Step& step = plan.steps_[group.step];
  return AtNode(Unsupported("wants its inputs in one block, but one of them " + why), *step.node,
                step.provider->name());
}

Status PlanBuilder::PlaceBuffers(ExecutionPlan& plan) {
  plan.arenas_.clear();
  for (int device = 0; device < static_cast<int>(plan.devices_.size()); ++device) {
    RETURN_IF_ERROR(PlaceBuffers(plan, device));
  }
  return {};
}

Status PlanBuilder::PlaceBuffers(ExecutionPlan& plan, int device) {
  std::vector<MemoryBlock> blocks;
  std::vector<int> block_of(plan.buffers_.size(), -1);
  std::vector<size_t> inside(plan.buffers_.size(), 0);
  for (const ContiguousGroup& group : plan.contiguous_) {
    ASSIGN_OR_RETURN(const bool planned, IsPlannedGroup(plan, group));
    if (!planned || plan.buffers_[group.buffers.front()].device != device) continue;
    MemoryBlock block{0, INT_MAX, -1};
    for (uint32_t id : group.buffers) {
      const PlannedBuffer& buffer = plan.buffers_[id];
      if (block_of[id] >= 0) {
        return Unsupported(
            plan.steps_[group.step].node->Label() +
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
  for (size_t id = 1; id < plan.buffers_.size(); ++id) {
    const PlannedBuffer& buffer = plan.buffers_[id];
    if (buffer.kind != Kind::kArena || buffer.device != device || block_of[id] >= 0 ||
        buffer.last_step < 0)
      continue;
    block_of[id] = static_cast<int>(blocks.size());
    blocks.push_back({buffer.bytes, buffer.first_step, buffer.last_step});
  }
  const size_t first_scratch = blocks.size();
  for (int s = 0; s < static_cast<int>(plan.steps_.size()); ++s) {
    blocks.push_back({plan.steps_[s].device == device ? plan.scratch_bytes_[s] : 0, s, s});
  }
  plan.arenas_.push_back(PlanMemory(blocks, plan.options_.reuse_memory));
  for (size_t id = 1; id < plan.buffers_.size(); ++id) {
    if (block_of[id] >= 0) plan.buffers_[id].offset = blocks[block_of[id]].offset + inside[id];
  }
  for (size_t s = 0; s < plan.steps_.size(); ++s) {
    if (plan.steps_[s].device == device)
      plan.steps_[s].scratch_offset = blocks[first_scratch + s].offset;
  }
  return {};
}

}  // namespace caesura
