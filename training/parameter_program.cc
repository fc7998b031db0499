// SPDX-License-Identifier: Apache-2.0
#include "training/parameter_program.h"

#include <map>

#include "core/base/status_macros.h"
#include "core/execute/subgraph.h"
#include "core/plan/function_expansion.h"
#include "graph_transforms/pipeline.h"
#include "graph_transforms/recompute.h"

namespace caesura {

Result<std::shared_ptr<ParameterProgram>> ParameterProgram::Create(
    Model model, const ProviderList& given, const ParameterGraphOptions& options) {
  ProviderList providers = given;
  if (options.ops != nullptr) {
    ASSIGN_OR_RETURN(providers, options.ops->WithKernels(given));
  }
  std::map<std::string, Tensor> initial;
  for (const std::string& name : options.parameters) {
    initial[name] = *model.graph->Initializer(model.graph->FindValue(name));
  }
  RETURN_IF_ERROR(ExpandMissingKernels(*model.graph, providers).status());
  RETURN_IF_ERROR(RunPasses(options.passes ? options.passes(providers) : PassList(), model,
                            options.disabled_passes)
                      .status());
  auto report = std::make_shared<CpuFallbackReport>();
  const PassList placement = PlacementPasses(providers, {.report = report});
  RETURN_IF_ERROR(RunPasses(placement, model, options.disabled_passes).status());
  RETURN_IF_ERROR(CheckKernels(*model.graph, providers));
  PlanOptions plan = options.plan;
  for (const auto& name : options.parameters) {
    // Passes drop a parameter that nothing reads; it has its place among the others all the same.
    if (model.graph->FindValue(name) == nullptr)
      model.graph->AddInitializer(name, initial.at(name));
    plan.parameters.push_back(model.graph->FindValue(name));
  }
  std::shared_ptr<ParameterProgram> out(
      new ParameterProgram(std::move(model.graph), providers,
                           WithSubgraphs(std::move(plan), providers), options.memory_budget));
  out->cpu_fallback_ = *std::move(report);
  return out;
}

Result<std::shared_ptr<const ExecutionPlan>> ParameterProgram::Plan(
    const std::vector<RuntimeValue>& feeds, const std::vector<FeedSpec>& known) {
  ASSIGN_OR_RETURN(std::shared_ptr<const ExecutionPlan> plan, plans_.Get(feeds, known));
  if (memory_budget_ == 0 || plan->arena_bytes() <= memory_budget_) return plan;
  std::lock_guard<std::mutex> lock(mutex_);
  if (auto it = fitted_.find(plan.get()); it != fitted_.end()) return it->second.within;
  ASSIGN_OR_RETURN(std::shared_ptr<const ExecutionPlan> within, PlanWithin(plan, memory_budget_));
  if (fitted_.size() > PlanCache::kMaxPlans) fitted_.clear();
  fitted_[plan.get()] = {plan, within};
  return within;
}

std::shared_ptr<ValueCache> ParameterProgram::CacheOf(
    const std::shared_ptr<const ExecutionPlan>& plan) {
  std::lock_guard<std::mutex> lock(mutex_);
  // Plans that fell out of the plan cache leave theirs behind; runs in flight hold what they use.
  if (caches_.size() > PlanCache::kMaxPlans) caches_.clear();
  Cached& cached = caches_[plan.get()];
  if (cached.plan == nullptr) cached = {plan, std::make_shared<ValueCache>(plan->cache_entries())};
  return cached.cache;
}

Result<StartedRun> ParameterProgram::Start(const std::shared_ptr<const ExecutionPlan>& plan,
                                           std::vector<RuntimeValue> feeds, RunOptions options) {
  StartedRun run{CacheOf(plan), states_.Borrow(plan)};
  options.cache = run.cache.get();
  RETURN_IF_ERROR(run.state->Start(std::move(feeds), std::move(options)));
  return run;
}

}  // namespace caesura
