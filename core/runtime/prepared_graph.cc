// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/prepared_graph.h"

#include <map>
#include <set>

#include "core/base/status_macros.h"
#include "core/execute/undo_log.h"
#include "core/plan/function_expansion.h"
#include "core/plan/parameter_writes.h"
#include "core/plan/subgraph_partition.h"
#include "core/runtime/subgraph.h"

namespace caesura {
namespace {

PassList PassesOf(const PreparedGraphOptions& options, const ProviderList& providers) {
  if (options.passes) return options.passes(providers);
  return AnyCompiles(providers) ? PassList{MakeSubgraphPartitionPass(providers)} : PassList();
}

// The number of steps that may have written. A kernel of the host that updates in place fails, if
// at all, before it writes; one of a device may fail between two launches. The step of a run that
// was cancelled or given up has not begun.
int StepsWithWrites(const ExecutionState& state, const Result<RunOutcome>& outcome) {
  const int at = state.program_counter();
  const std::vector<PlanStep>& steps = state.plan().steps();
  const bool is_failed_step = !outcome.ok() && outcome.status().code() != StatusCode::kCancelled &&
                              at < static_cast<int>(steps.size());
  return at + (is_failed_step && !steps[at].provider->device().is_host() ? 1 : 0);
}

ParameterEffect EffectOf(const ExecutionState& state, const Result<RunOutcome>& outcome) {
  if (outcome.ok())
    return {state.has_written() ? ParameterState::kCommitted : ParameterState::kUnchanged};
  UndoLog* undo = state.options().undo;
  if (undo != nullptr && undo->Undo(state))
    return {.state = ParameterState::kUndone, .was_interrupted = undo->was_interrupted()};
  std::set<int> parameters;
  for (int s = 0; s < StepsWithWrites(state, outcome); ++s)
    ForEachWrittenParameter(state.plan(), s, [&](int parameter) { parameters.insert(parameter); });
  if (parameters.empty()) return {ParameterState::kUnchanged};
  ParameterEffect effect{ParameterState::kInconsistent};
  for (int parameter : parameters)
    effect.inconsistent.push_back(state.options().parameters->name(parameter));
  return effect;
}

}  // namespace

Result<std::shared_ptr<PreparedGraph>> PreparedGraph::Create(Model model, const ProviderList& given,
                                                             const PreparedGraphOptions& options) {
  ProviderList providers = given;
  if (options.ops != nullptr) {
    ASSIGN_OR_RETURN(providers, options.ops->WithKernels(given));
  }
  std::map<std::string, Tensor> initial;
  for (size_t i = 0; i < options.parameters.size(); ++i) {
    const std::string& name = options.parameters[i];
    Value* value = model.graph->FindValue(name);
    if (options.parameter_set != nullptr)
      model.graph->SetInitializer(value, options.parameter_set->tensor(static_cast<int>(i)));
    initial[name] = *model.graph->Initializer(value);
  }
  RETURN_IF_ERROR(ExpandMissingKernels(*model.graph, providers).status());
  RETURN_IF_ERROR(RunPasses(PassesOf(options, providers), model, options.disabled_passes).status());
  RETURN_IF_ERROR(CheckKernels(*model.graph, providers));
  PlanOptions plan = options.plan;
  for (const auto& name : options.parameters) {
    // Passes drop a parameter that nothing reads; it has its place among the others all the same.
    if (model.graph->FindValue(name) == nullptr)
      model.graph->AddInitializer(name, initial.at(name));
    plan.parameters.push_back(model.graph->FindValue(name));
  }
  return std::make_shared<PreparedGraph>(std::move(model), providers,
                                         WithSubgraphs(std::move(plan), providers),
                                         std::vector<const Value*>(), options.fit);
}

PreparedGraph::PreparedGraph(Model model, ProviderList providers, PlanOptions options,
                             std::vector<const Value*> captured, PlanFitter fit)
    : model_(std::make_shared<const Model>(std::move(model))),
      plans_(model_->graph, std::move(providers), std::move(options), std::move(captured),
             std::move(fit)) {}

std::shared_ptr<ValueCache> PreparedGraph::CacheOf(const SharedPlan& plan) {
  if (plan->cache_entries() == 0) return nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  // Plans that fell out of the plan cache leave theirs here; runs in flight hold what they use.
  if (caches_.size() > PlanCache::kMaxPlans) caches_.clear();
  Cached& cached = caches_[plan.get()];
  if (cached.plan == nullptr) cached = {plan, std::make_shared<ValueCache>(plan->cache_entries())};
  return cached.cache;
}

Result<StartedRun> PreparedGraph::Start(const SharedPlan& plan, std::vector<RuntimeValue> feeds,
                                        RunOptions options) {
  StartedRun run{CacheOf(plan), states_.Borrow(plan)};
  options.cache = run.cache.get();
  RETURN_IF_ERROR(run.state->Start(std::move(feeds), std::move(options)));
  return run;
}

Result<StartedRun> PreparedGraph::Restore(const SharedPlan& plan, const StateSnapshot& snapshot,
                                          RunOptions options) {
  StartedRun run{CacheOf(plan), states_.Borrow(plan)};
  options.cache = run.cache.get();
  RETURN_IF_ERROR(run.state->Restore(snapshot, std::move(options)));
  return run;
}

Result<std::vector<RuntimeValue>> PreparedGraph::RunToEnd(StartedRun run) {
  const Result<RunOutcome> outcome = PartialExecutor::Run(*run.state);
  return EndRun(std::move(run), outcome);
}

Result<std::vector<RuntimeValue>> PreparedGraph::EndRun(StartedRun run,
                                                        const Result<RunOutcome>& outcome,
                                                        ParameterEffect* effect) {
  if (effect != nullptr) *effect = EffectOf(*run.state, outcome);
  std::vector<RuntimeValue> results = run.state->TakeFetches();
  Return(std::move(run));
  if (!outcome.ok()) return outcome.status();
  if (*outcome == RunOutcome::kFinished) return results;
  return Unsupported(
      "the graph holds a YieldOp; run it through a TrainingSession or a SplitModule");
}

}  // namespace caesura
