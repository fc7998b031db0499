// SPDX-License-Identifier: Apache-2.0
// From steps to memory: how long each buffer lives, which ones the caller gets, and where in the
// arenas the others lie.
#include <algorithm>
#include <climits>
#include <unordered_set>

#include "core/base/status_macros.h"
#include "core/plan/memory_planner.h"
#include "core/plan/node_error.h"
#include "core/plan/phases/plan_phases.h"

namespace caesura {

using Kind = PlannedBuffer::Kind;

void ComputeLifetimes(PlanData& plan) {
  for (PlannedBuffer& buffer : plan.buffers) buffer.first_step = buffer.last_step = -1;
  for (int s = 0; s < static_cast<int>(plan.steps.size()); ++s) {
    const PlanStep& step = plan.steps[s];
    for (uint32_t a = 0; a < step.input_count + step.output_count; ++a) {
      PlannedBuffer& buffer = plan.buffers[plan.arguments[step.first_argument + a]];
      if (a >= step.input_count && buffer.first_step < 0) buffer.first_step = s;
      buffer.last_step = s;
    }
  }
  const int end = static_cast<int>(plan.steps.size());
  for (const Yield::Item& item : plan.fetches)
    plan.buffers[plan.values[item.value].buffer].last_step = end;
}

void GiveOutputsOwnBuffers(PlanData& plan) {
  int fetch_count = 0;
  std::unordered_set<uint32_t> moved;
  for (const ContiguousGroup& group : plan.contiguous)  // they stay in their block
    moved.insert(group.buffers.begin(), group.buffers.end());
  auto try_move = [&](Yield::Item& item, int at) {
    const uint32_t buffer = plan.values[item.value].buffer;
    PlannedBuffer& planned = plan.buffers[buffer];
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
  for (Yield& yield : plan.yields) {
    for (Yield::Item& item : yield.outputs) try_move(item, yield.step);
  }
  for (Yield::Item& item : plan.fetches) try_move(item, static_cast<int>(plan.steps.size()));
}

void ListHandedOutCopies(PlanData& plan) {
  for (const Yield::Item& item : plan.fetches) {
    const PlannedValue& value = plan.values[item.value];
    const uint8_t from = plan.buffers[value.buffer].device;
    if (item.device == from) continue;
    const size_t bytes = value.known ? BytesOf(value.shape, value.dtype) : 0;
    plan.copies.push_back(
        {PlannedCopy::When::kHandedOut, item.value, from, item.device, bytes, nullptr});
  }
}

void ListReleases(PlanData& plan) {
  for (uint32_t id = 1; id < plan.values.size(); ++id) {
    const PlannedBuffer& buffer = plan.buffers[plan.values[id].buffer];
    const bool held = buffer.kind == Kind::kDynamic || buffer.kind == Kind::kResume;
    if (held && buffer.last_step >= 0 && buffer.last_step < static_cast<int>(plan.steps.size())) {
      plan.steps[buffer.last_step].release.push_back(id);
    }
  }
}

namespace {

// Inputs that all lie in the arena are laid out as one block. Otherwise none may: what callers own
// must lie right.
Result<bool> IsPlannedGroup(const PlanData& plan, const ContiguousGroup& group) {
  size_t planned = 0;
  std::string why;
  std::unordered_set<uint32_t> seen;
  for (uint32_t id : group.buffers) {
    const Kind kind = plan.buffers[id].kind;
    if (kind == Kind::kArena) ++planned;
    if (kind == Kind::kDynamic || kind == Kind::kResume || kind == Kind::kCached)
      why = "is known only at run time";
    if (!seen.insert(id).second) why = "is another one, or a view of it";
  }
  if (planned > 0 && planned < group.buffers.size())
    why = "comes from outside while others are computed";
  if (why.empty()) return planned > 0;
  const PlanStep& step = plan.steps[group.step];
  return AtNode(Unsupported("wants its inputs in one block, but one of them " + why), *step.node,
                step.provider->name());
}

// The blocks of one device's arena: groups that lie together, then single buffers, then the scratch
// memory of each step.
struct ArenaBlocks {
  std::vector<MemoryBlock> blocks;
  std::vector<int> of;         // by buffer id; -1: not in this arena
  std::vector<size_t> inside;  // by buffer id: its offset within the block
};

Status AddGroups(const PlanData& plan, int device, ArenaBlocks* arena) {
  for (const ContiguousGroup& group : plan.contiguous) {
    ASSIGN_OR_RETURN(const bool planned, IsPlannedGroup(plan, group));
    if (!planned || plan.buffers[group.buffers.front()].device != device) continue;
    MemoryBlock block{0, INT_MAX, -1};
    for (uint32_t id : group.buffers) {
      const PlannedBuffer& buffer = plan.buffers[id];
      if (arena->of[id] >= 0) {
        return Unsupported(
            plan.steps[group.step].node->Label() +
            " wants its inputs in one block, but another node wants one of them in another block");
      }
      block.bytes = (block.bytes + group.alignment - 1) / group.alignment * group.alignment;
      arena->inside[id] = block.bytes;
      arena->of[id] = static_cast<int>(arena->blocks.size());
      block.bytes += buffer.bytes;
      block.first = std::min(block.first, buffer.first_step);
      block.last = std::max(block.last, buffer.last_step);
    }
    arena->blocks.push_back(block);
  }
  return {};
}

Status AssignOffsets(PlanData& plan, int device) {
  ArenaBlocks arena{
      {}, std::vector<int>(plan.buffers.size(), -1), std::vector<size_t>(plan.buffers.size(), 0)};
  RETURN_IF_ERROR(AddGroups(plan, device, &arena));
  for (size_t id = 1; id < plan.buffers.size(); ++id) {
    const PlannedBuffer& buffer = plan.buffers[id];
    if (buffer.kind != Kind::kArena || buffer.device != device || arena.of[id] >= 0 ||
        buffer.last_step < 0)
      continue;
    arena.of[id] = static_cast<int>(arena.blocks.size());
    arena.blocks.push_back({buffer.bytes, buffer.first_step, buffer.last_step});
  }
  const size_t first_scratch = arena.blocks.size();
  for (int s = 0; s < static_cast<int>(plan.steps.size()); ++s) {
    const PlanStep& step = plan.steps[s];
    arena.blocks.push_back({step.device == device ? step.scratch_bytes : 0, s, s});
  }
  plan.arenas.push_back(PlanMemory(arena.blocks, plan.options.reuse_memory,
                                   device == 0 ? kBufferAlignment : kDeviceAlignment));
  for (size_t id = 1; id < plan.buffers.size(); ++id) {
    if (arena.of[id] >= 0)
      plan.buffers[id].offset = arena.blocks[arena.of[id]].offset + arena.inside[id];
  }
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    if (plan.steps[s].device == device)
      plan.steps[s].scratch_offset = arena.blocks[first_scratch + s].offset;
  }
  return {};
}

}  // namespace

Status AssignOffsets(PlanData& plan) {
  plan.arenas.clear();
  for (int device = 0; device < static_cast<int>(plan.devices.size()); ++device) {
    RETURN_IF_ERROR(AssignOffsets(plan, device));
  }
  return {};
}

}  // namespace caesura
