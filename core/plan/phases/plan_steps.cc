// SPDX-License-Identifier: Apache-2.0
// The kinds of step that a node becomes: one with a kernel, one whose kernel is made at run time, a
// yield.
#include <algorithm>
#include <functional>
#include <optional>

#include "core/graph/op_def.h"
#include "core/base/status_macros.h"
#include "core/kernels/kernel_creation.h"
#include "core/plan/phases/plan_phases.h"

namespace caesura {

using Kind = PlannedBuffer::Kind;

void AppendStep(PlanDraft& plan, NodeDraft& draft, PlanStep step) {
  step.node = draft.node;
  step.graph_index = draft.position;
  step.subsequence = 2166136261u;  // FNV-1a
  // A node that runs again (graph_transforms/recompute.h) draws what the first one drew.
  const auto name = draft.node->Attr<std::string>("random_stream", draft.node->name());
  for (unsigned char c : name) step.subsequence = (step.subsequence ^ c) * 16777619u;
  step.provider = draft.provider;
  step.device =
      static_cast<uint8_t>(std::max(0, plan.placement->IndexOf(draft.provider->device())));
  step.bodies = std::move(draft.bodies);
  std::vector<uint32_t>& values = plan.data.argument_values;
  step.first_argument = static_cast<uint32_t>(values.size());
  step.input_count = static_cast<uint32_t>(draft.inputs.size());
  step.output_count = static_cast<uint32_t>(draft.outputs.size());
  values.insert(values.end(), draft.inputs.begin(), draft.inputs.end());
  values.insert(values.end(), draft.outputs.begin(), draft.outputs.end());
  plan.data.steps.push_back(std::move(step));
}

Status AddDynamicStep(PlanDraft& plan, NodeDraft& draft) {
  RETURN_IF_ERROR(CopyInputs(plan, draft));
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    const uint32_t id = draft.outputs[i];
    if (id == 0) continue;
    plan.values[id].known = false;
    plan.values[id].buffer =
        NewBuffer(plan, Kind::kDynamic, 0, -1, id, OutputDevice(plan, draft, static_cast<int>(i)));
  }
  RecordDecision(plan, draft, NodeRecord::Kind::kDynamic);
  PlanStep step;
  step.kind = PlanStep::Kind::kDynamic;
  AppendStep(plan, draft, std::move(step));
  return {};
}

namespace {

// Inputs that the kernel reads as one block, for the step that comes next.
void AddContiguousGroup(PlanDraft& plan, const NodeDraft& draft, const KernelDef& def) {
  ContiguousGroup group{static_cast<int>(plan.data.steps.size()), def.contiguous_alignment, {}};
  for (int i = 0; i < draft.explicit_inputs; ++i) {
    if (draft.inputs[i] == 0 || !KernelDef::Lists(def.contiguous_inputs, i)) continue;
    group.buffers.push_back(plan.values[draft.inputs[i]].buffer);
  }
  if (group.buffers.size() > 1) plan.data.contiguous.push_back(std::move(group));
}

}  // namespace

Status AddStep(PlanDraft& plan, NodeDraft& draft, KernelInfo& info, const KernelDef& def) {
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    if (draft.outputs[i] == 0) continue;
    const OutputInfo& decided = info.outputs()[i];
    if (decided.kind == OutputInfo::Kind::kUnset) {
      return Internal(draft.node->Label() + " kernel did not decide on output " +
                      std::to_string(i));
    }
    // Strings are objects: they live in values of the state, made by a dynamic step.
    if (decided.kind == OutputInfo::Kind::kPlanned && decided.dtype == DType::kString)
      return AddDynamicStep(plan, draft);
  }
  RETURN_IF_ERROR(CopyInputs(plan, draft));
  if (TryViews(plan, draft, info, def)) return {};
  std::vector<Layout> layouts = ChooseLayouts(plan, draft, info, def);
  KernelInfo* made = &info;
  std::optional<KernelInfo> with_gaps;
  if (!std::all_of(layouts.begin(), layouts.end(), std::mem_fn(&Layout::dense))) {
    with_gaps.emplace(*draft.node, draft.infos, plan.data.threads);
    with_gaps->set_output_layouts(layouts);
    if (CreateKernel(def, *with_gaps).ok()) made = &*with_gaps;
    else layouts.assign(layouts.size(), Layout());
  }
  PlanStep step;
  ASSIGN_OR_RETURN(const bool computes, AssignBuffers(plan, draft, *made, def, layouts, step));
  if (!computes) {
    RecordDecision(plan, draft, NodeRecord::Kind::kAlias, &def);
    return {};
  }
  if (made == &info)
    RecordDecision(plan, draft, NodeRecord::Kind::kStep, &def,
                   static_cast<int>(plan.data.steps.size()));
  else RecordDecision(plan, draft, NodeRecord::Kind::kFixed, &def);
  if (step.kind == PlanStep::Kind::kCompute && !def.strided_outputs.empty())
    RememberWriter(plan, draft, def, layouts);
  step.def = &def;
  step.compute = made->TakeCompute();
  if (!step.compute) return Internal(draft.node->Label() + " kernel has no compute function");
  step.scratch_bytes = made->scratch_bytes();
  AddContiguousGroup(plan, draft, def);
  AppendStep(plan, draft, std::move(step));
  return {};
}

// --- yields ---

namespace {

// The gradient of the yield's output `of`: of the same dtype and shape.
void AddResumeValue(PlanDraft& plan, Yield& yield, uint32_t id, int of) {
  yield.resume_values.push_back(id);
  yield.resume_of.push_back(of);
  if (id == 0) return;
  const PlannedValue given = plan.values[yield.outputs[of].value];
  PlaceValue(plan, id, given.known ? Kind::kResume : Kind::kDynamic, given.dtype, given.shape, -1,
             yield.outputs[of].device);
  plan.values[id].known = given.known;
}

void AddYieldOutputs(PlanDraft& plan, NodeDraft& draft, Yield& yield) {
  const Node& node = *draft.node;
  const auto names = node.Attr<std::vector<std::string>>("names", {});
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const Value* input = node.inputs()[i];
    const uint32_t id = ValueId(plan, input);
    draft.inputs.push_back(id);
    const std::string name = i < names.size() ? names[i] : input != nullptr ? input->name() : "";
    yield.outputs.push_back({id, false, name, static_cast<uint8_t>(DeviceOf(plan, id))});
  }
}

}  // namespace

Status AddYield(PlanDraft& plan, const Node& node, int position) {
  NodeDraft draft{&node,
                  position,
                  {},
                  plan.data.providers.front().get(),
                  static_cast<int>(node.inputs().size())};
  Yield yield;
  yield.step = static_cast<int>(plan.data.steps.size());
  AddYieldOutputs(plan, draft, yield);
  const std::vector<int> differentiable = DifferentiableInputs(node);
  if (node.outputs().size() > differentiable.size()) {
    return InvalidModel(node.Label() + " has " + std::to_string(node.outputs().size()) +
                        " outputs, but only " + std::to_string(differentiable.size()) +
                        " of its inputs are differentiable");
  }
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    draft.outputs.push_back(ValueId(plan, node.outputs()[i]));
    AddResumeValue(plan, yield, draft.outputs.back(), differentiable[i]);
  }
  PlanStep step;
  step.kind = PlanStep::Kind::kYield;
  step.index = static_cast<int>(plan.data.yields.size());
  plan.data.yields.push_back(std::move(yield));
  AppendStep(plan, draft, std::move(step));
  return {};
}

}  // namespace caesura
