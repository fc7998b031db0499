// SPDX-License-Identifier: Apache-2.0
// Buffers of a node's outputs: their own, one of its inputs', or an entry of the value cache.
#include <algorithm>
#include <set>

#include "core/base/status_macros.h"
#include "core/plan/node_error.h"
#include "core/plan/phases/plan_phases.h"

namespace caesura {
namespace {

using Kind = PlannedBuffer::Kind;

// --- what an output shares its bytes with ---

// An update in place must hit memory that is meant to change, and come after all reads of the old
// value.
Status CheckInPlace(const PlanDraft& plan, const NodeDraft& draft, uint32_t input) {
  const ValueDraft& value = plan.values[input];
  const BufferDraft& buffer = plan.buffers[value.buffer];
  const std::string name = "'" + (value.value == nullptr ? "" : value.value->name()) + "'";
  std::string why;
  if (buffer.kind == Kind::kConstant || buffer.kind == Kind::kFeed ||
      buffer.kind == Kind::kResume) {
    why = "updates " + name + " in place, which is neither a parameter nor computed in this run";
  } else if (plan.value_ids.at(value.value) != input) {
    why = "updates " + name + " in place, which is on another device";
  } else if (buffer.kind == Kind::kCached) {
    why = "updates " + name + " in place, which is kept in the value cache";
  } else if (buffer.last_reader > draft.position) {
    why = "updates " + name +
          " in place, but a later node or the graph's outputs still read the old value";
  }
  return why.empty() ? Status() : AtNode(InvalidModel(why), *draft.node, draft.provider->name());
}

// True if the output may take the input's bytes: in the arena, of one size and layout, and not read
// from here on.
bool MayOverwrite(const PlanDraft& plan, const NodeDraft& draft, const Alias& alias, size_t bytes,
                  const Layout& layout) {
  const ValueDraft& input = plan.values[draft.inputs[alias.input]];
  const BufferDraft& buffer = plan.buffers[input.buffer];
  if (!plan.data.options.reuse_memory || buffer.kind != Kind::kArena || buffer.bytes != bytes)
    return false;
  if (input.layout != layout || buffer.last_reader != draft.position) return false;
  // Another argument may be the same value, or a view of the same bytes.
  auto same = [&](uint32_t id) { return id != 0 && plan.values[id].buffer == input.buffer; };
  return std::count_if(draft.inputs.begin(), draft.inputs.end(), same) == 1 &&
         std::none_of(draft.outputs.begin(), draft.outputs.begin() + alias.output, same);
}

Result<uint32_t> OutputBuffer(PlanDraft& plan, const NodeDraft& draft, const KernelInfo& info,
                              const KernelDef& def, int output, const Layout& layout) {
  const OutputInfo& decided = info.outputs()[output];
  const size_t bytes = BytesUnder(layout, decided.shape, decided.dtype);
  std::vector<Alias> aliases = info.aliases();
  aliases.insert(aliases.end(), def.aliases.begin(), def.aliases.end());
  for (const Alias& alias : aliases) {
    if (alias.output != output || alias.input >= static_cast<int>(draft.inputs.size())) continue;
    const uint32_t input = draft.inputs[alias.input];
    if (input == 0 || DeviceOf(plan, input) != OutputDevice(plan, draft, output)) continue;
    const uint32_t buffer = plan.values[input].buffer;
    const bool same_size = plan.buffers[buffer].bytes == bytes && plan.values[input].layout.dense();
    if (alias.kind == Alias::Kind::kInPlace) {
      RETURN_IF_ERROR(CheckInPlace(plan, draft, input));
      if (!same_size)
        return Internal(draft.node->Label() +
                        " an output in place has another size than its input");
      return buffer;
    }
    if (alias.kind == Alias::Kind::kView ? same_size
                                         : MayOverwrite(plan, draft, alias, bytes, layout))
      return buffer;
  }
  return NewBuffer(plan, Kind::kArena, bytes, -1, draft.outputs[output],
                   OutputDevice(plan, draft, output));
}

// The input that output `i` is a view of, in the same buffer; 0: none.
uint32_t ViewedInput(const PlanDraft& plan, const NodeDraft& draft, const KernelDef& def, int i) {
  uint32_t viewed = 0;
  for (const Alias& alias : def.aliases) {
    if (alias.kind != Alias::Kind::kView || alias.output != i) continue;
    if (alias.input >= static_cast<int>(draft.inputs.size())) continue;
    const uint32_t input = draft.inputs[alias.input];
    const uint32_t buffer = plan.values[draft.outputs[i]].buffer;
    if (input != 0 && plan.values[input].buffer == buffer) viewed = input;
  }
  return viewed;
}

// --- values that depend only on parameters ---

bool IsCacheable(const PlanDraft& plan, const NodeDraft& draft, const KernelInfo& info,
                 const KernelDef& def) {
  if (!plan.data.options.cache_values || !def.deterministic || !draft.bodies.empty()) return false;
  if (draft.node->phase() != Phase::kForward || !info.aliases().empty()) return false;
  bool any = false;
  for (uint32_t id : draft.inputs) {
    if (id == 0) continue;
    if (plan.values[id].from_parameters) any = true;
    else if (plan.values[id].contents == nullptr) return false;
  }
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    if (draft.outputs[i] != 0 && info.outputs()[i].kind != OutputInfo::Kind::kPlanned) return false;
  }
  for (const Alias& alias : def.aliases) {
    if (alias.kind == Alias::Kind::kInPlace) return false;
  }
  return any && std::count_if(draft.outputs.begin(), draft.outputs.end(),
                              [](uint32_t id) { return id != 0; }) == 1;
}

void Cache(PlanDraft& plan, const NodeDraft& draft, uint32_t id, PlanStep& step) {
  ValueDraft& value = plan.values[id];
  PlannedBuffer& buffer = plan.buffers[value.buffer];
  buffer.kind = Kind::kCached;
  buffer.index = step.index = plan.data.cache_entries++;
  step.kind = PlanStep::Kind::kCached;
  std::set<int> parameters;
  for (uint32_t input : draft.inputs)
    parameters.insert(plan.values[input].parameters.begin(), plan.values[input].parameters.end());
  step.cache_parameters.assign(parameters.begin(), parameters.end());
  value.parameters = step.cache_parameters;
  value.from_parameters = true;
}

}  // namespace

Result<bool> AssignBuffers(PlanDraft& plan, const NodeDraft& draft, const KernelInfo& info,
                           const KernelDef& def, const std::vector<Layout>& layouts,
                           PlanStep& step) {
  const bool cacheable = IsCacheable(plan, draft, info, def);
  bool only_views = true, any_output = false;
  for (int i = 0; i < static_cast<int>(draft.outputs.size()); ++i) {
    const uint32_t id = draft.outputs[i];
    if (id == 0) continue;
    any_output = true;
    const OutputInfo& decided = info.outputs()[i];
    ValueDraft& value = plan.values[id];
    if (decided.kind == OutputInfo::Kind::kSizedInCompute) {
      value.buffer = NewBuffer(plan, Kind::kDynamic, 0, -1, id, OutputDevice(plan, draft, i));
      only_views = false;
      continue;
    }
    value.known = true;
    value.dtype = decided.dtype;
    value.shape = decided.shape;
    value.layout = layouts[i];
    ASSIGN_OR_RETURN(value.buffer, OutputBuffer(plan, draft, info, def, i, layouts[i]));
    BufferDraft& buffer = plan.buffers[value.buffer];
    buffer.last_reader = std::max(buffer.last_reader, value.last_reader);
    const uint32_t viewed = ViewedInput(plan, draft, def, i);
    only_views &= viewed != 0;
    if (viewed != 0) {
      value.from_parameters = plan.values[viewed].from_parameters;
      value.parameters = plan.values[viewed].parameters;
    } else if (cacheable && buffer.kind == Kind::kArena) {
      Cache(plan, draft, id, step);
    }
  }
  return !any_output || !only_views;
}

}  // namespace caesura
