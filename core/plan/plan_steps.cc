// SPDX-License-Identifier: Apache-2.0
// From a node to a step: what its outputs share bytes with, and what kind of step it becomes.
#include <algorithm>
#include <set>

#include "core/base/status_macros.h"
#include "core/plan/node_error.h"
#include "core/plan/plan_builder.h"

namespace caesura {

Status PlanBuilder::AddDynamic(Draft& draft) {
  RETURN_IF_ERROR(PlaceInputs(draft));
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    const uint32_t id = draft.outputs[i];
    if (id == 0) continue;
    plan_->values_[id].known = false;
    plan_->values_[id].buffer =
        NewBuffer(Kind::kDynamic, 0, -1, id, OutputDevice(draft, static_cast<int>(i)));
  }
  Step step;
  step.kind = Step::Kind::kDynamic;
  Record(draft, NodeRecord::Kind::kDynamic);
  FinishStep(draft, std::move(step), 0);
  return {};
}

void PlanBuilder::FinishStep(Draft& draft, Step step, size_t scratch_bytes) {
  step.node = draft.node;
  step.graph_index = draft.position;
  step.stream = 2166136261u;  // FNV-1a
  // A node that runs again (graph_transforms/recompute.h) draws what the first one drew.
  const auto stream = draft.node->Attr<std::string>("random_stream", draft.node->name());
  for (unsigned char c : stream) step.stream = (step.stream ^ c) * 16777619u;
  step.provider = draft.provider;
  step.device = static_cast<uint8_t>(std::max(0, placement_->IndexOf(draft.provider->device())));
  step.first_argument = static_cast<uint32_t>(plan_->arguments_.size());
  step.input_count = static_cast<uint32_t>(draft.inputs.size());
  step.output_count = static_cast<uint32_t>(draft.outputs.size());
  step.bodies = std::move(draft.bodies);
  for (const auto* ids : {&draft.inputs, &draft.outputs}) {
    for (uint32_t id : *ids) {
      plan_->arguments_.push_back(plan_->values_[id].buffer);
      plan_->argument_values_.push_back(id);
    }
  }
  plan_->steps_.push_back(std::move(step));
  plan_->scratch_bytes_.push_back(scratch_bytes);
}

// --- what an output shares its bytes with ---

// An update in place must hit memory that is meant to change, and come after all reads of the old
// value.
Status PlanBuilder::CheckInPlace(const Draft& draft, uint32_t input) const {
  const PlannedValue& value = plan_->values_[input];
  const PlannedBuffer& buffer = plan_->buffers_[value.buffer];
  const std::string name = "'" + (value.value == nullptr ? "" : value.value->name()) + "'";
  std::string why;
  if (buffer.kind == Kind::kConstant || buffer.kind == Kind::kFeed ||
      buffer.kind == Kind::kResume) {
    why = "updates " + name + " in place, which is neither a parameter nor computed in this run";
  } else if (value_ids_.at(value.value) != input) {
    why = "updates " + name + " in place, which is on another device";
  } else if (buffer.kind == Kind::kCached) {
    why = "updates " + name + " in place, which is kept in the value cache";
  } else if (buffer.last_step > draft.position) {
    why = "updates " + name +
          " in place, but a later node or the graph's outputs still read the old value";
  }
  return why.empty() ? Status() : AtNode(InvalidModel(why), *draft.node, draft.provider->name());
}

// Whether the output may take the input's bytes: in the arena, of one size, and read by nobody else
// from here on.
bool PlanBuilder::MayOverwrite(const Draft& draft, const Alias& alias, size_t bytes) const {
  const uint32_t buffer = plan_->values_[draft.inputs[alias.input]].buffer;
  const PlannedBuffer& planned = plan_->buffers_[buffer];
  if (!plan_->options_.reuse_memory || planned.kind != Kind::kArena || planned.bytes != bytes)
    return false;
  if (!plan_->values_[draft.inputs[alias.input]].layout.dense()) return false;
  if (planned.last_step != draft.position) return false;
  // Another argument may be the same value, or a view of the same bytes.
  auto same = [&](uint32_t id) { return id != 0 && plan_->values_[id].buffer == buffer; };
  return std::count_if(draft.inputs.begin(), draft.inputs.end(), same) == 1 &&
         std::none_of(draft.outputs.begin(), draft.outputs.begin() + alias.output, same);
}

Result<uint32_t> PlanBuilder::OutputBuffer(const Draft& draft, const KernelInfo& info,
                                           const KernelDef& def, int output) {
  const OutputInfo& decided = info.outputs()[output];
  const size_t bytes = static_cast<size_t>(decided.shape.elements()) * DTypeSize(decided.dtype);
  std::vector<Alias> aliases = info.in_place();
  aliases.insert(aliases.end(), def.aliases.begin(), def.aliases.end());
  for (const Alias& alias : aliases) {
    if (alias.output != output || alias.input >= static_cast<int>(draft.inputs.size())) continue;
    const uint32_t input = draft.inputs[alias.input];
    if (input == 0) continue;
    const uint32_t buffer = plan_->values_[input].buffer;
    const bool same_size =
        plan_->buffers_[buffer].bytes == bytes && plan_->values_[input].layout.dense();
    if (DeviceOf(input) != OutputDevice(draft, output)) continue;
    if (alias.kind == Alias::Kind::kInPlace) {
      RETURN_IF_ERROR(CheckInPlace(draft, input));
      if (!same_size)
        return Internal(draft.node->Label() +
                        " an output in place has another size than its input");
      return buffer;
    }
    if (alias.kind == Alias::Kind::kView ? same_size : MayOverwrite(draft, alias, bytes))
      return buffer;
  }
  return NewBuffer(Kind::kArena, bytes, -1, draft.outputs[output], OutputDevice(draft, output));
}

// --- values that depend on parameters alone ---

bool PlanBuilder::IsCacheable(const Draft& draft, const KernelInfo& info,
                              const KernelDef& def) const {
  if (!plan_->options_.cache_values || !def.deterministic || !draft.bodies.empty()) return false;
  if (draft.node->phase() != Phase::kForward || !info.in_place().empty()) return false;
  bool any = false;
  for (uint32_t id : draft.inputs) {
    if (id == 0) continue;
    if (from_parameters_[id]) any = true;
    else if (known_values_[id] == nullptr) return false;
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

void PlanBuilder::Cache(const Draft& draft, uint32_t id, Step& step) {
  PlannedBuffer& buffer = plan_->buffers_[plan_->values_[id].buffer];
  buffer.kind = Kind::kCached;
  buffer.index = step.index = plan_->cache_entries_++;
  step.kind = Step::Kind::kCached;
  std::set<int> parameters;
  for (uint32_t input : draft.inputs)
    parameters.insert(parameters_of_[input].begin(), parameters_of_[input].end());
  step.cache_parameters.assign(parameters.begin(), parameters.end());
  parameters_of_[id] = step.cache_parameters;
  from_parameters_[id] = true;
}

// --- steps whose shapes are known ---

Result<bool> PlanBuilder::PlaceOutputs(const Draft& draft, const KernelInfo& info,
                                       const KernelDef& def, Step& step) {
  const bool cacheable = IsCacheable(draft, info, def);
  bool only_views = true, any_output = false;
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    const uint32_t id = draft.outputs[i];
    if (id == 0) continue;
    any_output = true;
    const OutputInfo& decided = info.outputs()[i];
    PlannedValue& value = plan_->values_[id];
    if (decided.kind == OutputInfo::Kind::kSizedInCompute) {
      value.buffer = NewBuffer(Kind::kDynamic, 0, -1, id, OutputDevice(draft, static_cast<int>(i)));
      only_views = false;
      continue;
    }
    value.known = true;
    value.dtype = decided.dtype;
    value.shape = decided.shape;
    ASSIGN_OR_RETURN(value.buffer, OutputBuffer(draft, info, def, static_cast<int>(i)));
    PlannedBuffer& buffer = plan_->buffers_[value.buffer];
    buffer.last_step = std::max(buffer.last_step, last_use_[id]);
    uint32_t viewed = 0;  // the input that the output is a view of
    for (const Alias& alias : def.aliases) {
      if (alias.kind != Alias::Kind::kView || alias.output != static_cast<int>(i)) continue;
      if (alias.input >= static_cast<int>(draft.inputs.size())) continue;
      const uint32_t input = draft.inputs[alias.input];
      if (input != 0 && plan_->values_[input].buffer == value.buffer) viewed = input;
    }
    only_views &= viewed != 0;
    if (viewed != 0) {
      from_parameters_[id] = from_parameters_[viewed];
      parameters_of_[id] = parameters_of_[viewed];
    } else if (cacheable && buffer.kind == Kind::kArena) {
      Cache(draft, id, step);
    }
  }
  return !any_output || !only_views;
}

Status PlanBuilder::AddPlanned(Draft& draft, KernelInfo& info, const KernelDef& def) {
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    if (draft.outputs[i] == 0) continue;
    const OutputInfo& decided = info.outputs()[i];
    if (decided.kind == OutputInfo::Kind::kUnset) {
      return Internal(draft.node->Label() + " kernel did not decide on output " +
                      std::to_string(i));
    }
    // Strings are objects: they live in values of the state, made by a dynamic step.
    if (decided.kind == OutputInfo::Kind::kPlanned && decided.dtype == DType::kString)
      return AddDynamic(draft);
  }
  RETURN_IF_ERROR(PlaceInputs(draft));
  if (TryViews(draft, info, def)) return {};
  Step step;
  ASSIGN_OR_RETURN(const bool computes, PlaceOutputs(draft, info, def, step));
  if (!computes) {
    Record(draft, NodeRecord::Kind::kAlias, &def);
    return {};
  }
  Record(draft, NodeRecord::Kind::kStep, &def, static_cast<int>(plan_->steps_.size()));
  if (step.kind == Step::Kind::kCompute && !def.strided_outputs.empty()) {
    RememberWriter(draft, def, static_cast<int>(plan_->steps_.size()));
  }
  step.def = &def;
  step.compute = info.TakeCompute();
  if (!step.compute) return Internal(draft.node->Label() + " kernel has no compute function");
  ContiguousGroup group{static_cast<int>(plan_->steps_.size()), {}};
  for (int i = 0; i < draft.explicit_inputs; ++i) {
    if (draft.inputs[i] == 0 || !KernelDef::Lists(def.contiguous_inputs, i)) continue;
    group.buffers.push_back(plan_->values_[draft.inputs[i]].buffer);
  }
  if (group.buffers.size() > 1) plan_->contiguous_.push_back(std::move(group));
  FinishStep(draft, std::move(step), info.scratch_bytes());
  return {};
}

// --- yields ---

Status PlanBuilder::AddYield(const Node& node, int position) {
  Draft draft{
      &node, position, {}, plan_->providers_.front().get(), static_cast<int>(node.inputs().size())};
  const auto names = node.Attr<std::vector<std::string>>("names", {});
  const auto no_gradient = node.Attr<std::vector<int64_t>>("non_differentiable_outputs", {});
  Yield yield;
  yield.step = static_cast<int>(plan_->steps_.size());
  std::vector<int> differentiable;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const Value* input = node.inputs()[i];
    draft.inputs.push_back(ValueId(input));
    const int device = input == nullptr ? 0 : DeviceOf(draft.inputs.back());
    yield.outputs.push_back({draft.inputs.back(), false,
                             i < names.size() ? names[i]
                             : input          ? input->name()
                                              : "",
                             static_cast<uint8_t>(device)});
    if (std::find(no_gradient.begin(), no_gradient.end(), static_cast<int64_t>(i)) ==
        no_gradient.end()) {
      differentiable.push_back(static_cast<int>(i));
    }
  }
  if (node.outputs().size() > differentiable.size()) {
    return InvalidModel(node.Label() + " has " + std::to_string(node.outputs().size()) +
                        " outputs, but only " + std::to_string(differentiable.size()) +
                        " of its inputs are differentiable");
  }
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    draft.outputs.push_back(ValueId(node.outputs()[i]));
    AddResumeValue(yield, draft.outputs.back(), differentiable[i]);
  }
  Step step;
  step.kind = Step::Kind::kYield;
  step.index = static_cast<int>(plan_->yields_.size());
  plan_->yields_.push_back(std::move(yield));
  FinishStep(draft, std::move(step), 0);
  return {};
}

// The gradient of the yield's output `of`: of the same dtype and shape.
void PlanBuilder::AddResumeValue(Yield& yield, uint32_t id, int of) {
  yield.resume_values.push_back(id);
  yield.resume_of.push_back(of);
  if (id == 0) return;
  const PlannedValue given = plan_->values_[yield.outputs[of].value];
  Place(id, given.known ? Kind::kResume : Kind::kDynamic, given.dtype, given.shape, -1,
        yield.outputs[of].device);
  plan_->values_[id].known = given.known;
}

}  // namespace caesura
