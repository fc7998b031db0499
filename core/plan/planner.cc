// SPDX-License-Identifier: Apache-2.0
// Makes a plan of a graph and its feeds, phase by phase (plan_phases.h).
#include <algorithm>
#include <utility>

#include "core/base/status_macros.h"
#include "core/plan/execution_plan.h"
#include "core/plan/function_expansion.h"
#include "core/plan/phases/plan_phases.h"

namespace caesura {
namespace {

// Null for plans whose steps are not only matters of sizes.
std::shared_ptr<const PlanRecipe> RecipeOf(PlanDraft& plan) {
  const PlanData& data = plan.data;
  const bool takes_in = std::any_of(data.yields.begin(), data.yields.end(), [](const Yield& yield) {
    return !yield.resume_values.empty();
  });
  if (data.devices.size() > 1 || takes_in || !data.contiguous.empty()) return nullptr;
  plan.recipe.known_contents.reserve(plan.values.size());
  for (const ValueDraft& value : plan.values)
    plan.recipe.known_contents.push_back(value.contents != nullptr);
  plan.recipe.in_chain.assign(plan.values.size(), false);
  for (const WrittenChain& chain : plan.recipe.chains) {
    for (const WrittenChain::Link& link : chain.links) plan.recipe.in_chain[link.id] = true;
  }
  return std::make_shared<const PlanRecipe>(std::move(plan.recipe));
}

// The parts of the plan, without what only planning knows.
PlanData Flatten(PlanDraft& plan) {
  PlanData data = std::move(plan.data);
  data.values.reserve(plan.values.size());
  data.buffers.assign(plan.buffers.begin(), plan.buffers.end());
  data.arguments.reserve(data.argument_values.size());
  for (uint32_t id : data.argument_values) data.arguments.push_back(plan.values[id].buffer);
  for (ValueDraft& value : plan.values)
    data.values.push_back(std::move(static_cast<PlannedValue&>(value)));
  return data;
}

}  // namespace

Result<std::shared_ptr<const ExecutionPlan>> ExecutionPlan::Create(
    std::shared_ptr<const Graph> graph, const std::vector<FeedSpec>& feeds,
    const ProviderList& providers, const PlanOptions& options,
    const std::vector<const Value*>& captured) {
  if (providers.empty()) return InvalidArgument("a plan needs at least one provider");
  PlanDraft draft(std::move(graph), feeds, providers, options);
  // Outputs that the caller does not want, and all that only they need, are left out.
  FindReaders(draft);
  // Placement decides who runs each node; feeds, parameters and constants get their buffers.
  RETURN_IF_ERROR(BindInputs(draft, captured));
  // Each node becomes constants, views or a step. Its kernel sees the layouts and the contents that
  // the nodes before it were given, so one walk decides everything about a node.
  for (size_t i = 0; i < draft.graph().nodes().size(); ++i) {
    if (draft.needed[i])
      RETURN_IF_ERROR(PlanNode(draft, *draft.graph().nodes()[i], static_cast<int>(i)));
  }
  // All nodes without a kernel are reported at once.
  RETURN_IF_ERROR(NoKernels(draft.missing));
  RETURN_IF_ERROR(BindOutputs(draft));
  draft.data.recipe = RecipeOf(draft);
  // All steps are there: lifetimes, and from them memory.
  PlanData plan = Flatten(draft);
  ComputeLifetimes(plan);
  GiveOutputsOwnBuffers(plan);
  ListHandedOutCopies(plan);
  ListReleases(plan);
  RETURN_IF_ERROR(AssignOffsets(plan));
  return std::make_shared<const ExecutionPlan>(std::move(plan));
}

}  // namespace caesura
