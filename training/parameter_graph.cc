// SPDX-License-Identifier: Apache-2.0
#include "training/parameter_graph.h"

#include "core/base/status_macros.h"
#include "core/execute/partial_executor.h"
#include "core/execute/subgraph.h"
#include "core/plan/function_expansion.h"
#include "graph_transforms/pipeline.h"
#include "graph_transforms/recompute.h"
#include "training/gradient/training_mode.h"

namespace caesura {
namespace {

// The step that a run has failed at does not count: kernels that update in place fail, if at all, before they write.
bool HasWritten(const ExecutionState& state) {
  const ExecutionPlan& plan = state.plan();
  for (int i = 0; i < state.program_counter(); ++i) {
    const Step& step = plan.steps()[i];
    if (step.kind == Step::Kind::kLate && step.node->phase() == Phase::kOptimizer) return true;
    const uint32_t* outputs = plan.arguments().data() + step.first_argument + step.input_count;
    const bool writes = std::any_of(outputs, outputs + step.output_count, [&](uint32_t id) {
      return plan.buffers()[id].kind == PlannedBuffer::Kind::kParameter;
    });
    if (writes) return true;
  }
  return false;
}

}  // namespace

Result<std::unique_ptr<ParameterGraph>> ParameterGraph::Create(std::shared_ptr<Graph> graph,
                                                               const std::vector<std::string>& parameters,
                                                               const ProviderList& providers, PlanOptions options,
                                                               const PassList& passes,
                                                               const std::vector<std::string>& disabled_passes,
                                                               size_t memory_budget) {
  RETURN_IF_ERROR(ExpandMissingKernels(*graph, providers).status());
  Model model;
  model.graph = graph;
  RETURN_IF_ERROR(RunPasses(passes, model, disabled_passes).status());
  auto report = std::make_shared<CpuFallbackReport>();
  RETURN_IF_ERROR(RunPasses(PlacementPasses(providers, {.report = report}), model, disabled_passes).status());
  for (const std::string& name : parameters) options.parameters.push_back(graph->FindValue(name));
  std::unique_ptr<ParameterGraph> out(
      new ParameterGraph(std::move(graph), providers, WithSubgraphs(std::move(options), providers), memory_budget));
  out->cpu_fallback_ = *std::move(report);
  return out;
}

Result<std::shared_ptr<const ExecutionPlan>> ParameterGraph::Plan(const std::vector<RuntimeValue>& feeds,
                                                                   const std::vector<FeedSpec>& known) {
  ASSIGN_OR_RETURN(std::shared_ptr<const ExecutionPlan> plan, plans_.Get(feeds, known));
  if (memory_budget_ == 0 || plan->arena_bytes() <= memory_budget_) return plan;
  std::lock_guard<std::mutex> lock(mutex_);
  if (auto it = fitted_.find(plan.get()); it != fitted_.end()) return it->second.within;
  ASSIGN_OR_RETURN(std::shared_ptr<const ExecutionPlan> within, PlanWithin(plan, memory_budget_));
  if (fitted_.size() > PlanCache::kMaxPlans) fitted_.clear();
  fitted_[plan.get()] = {plan, within};
  return within;
}

Result<std::vector<RuntimeValue>> ParameterGraph::Order(const NamedValues& feeds, const NamedValues& extra) const {
  std::vector<RuntimeValue> ordered;
  std::string missing;
  size_t used = 0;
  for (const Value* input : graph().inputs()) {
    auto own = extra.find(input->name());
    if (own != extra.end()) {
      ordered.push_back(own->second);
      continue;
    }
    auto it = feeds.find(input->name());
    if (it != feeds.end()) ++used;
    else if (graph().Initializer(input) == nullptr) missing += (missing.empty() ? "'" : ", '") + input->name() + "'";
    ordered.push_back(it == feeds.end() ? RuntimeValue() : it->second);
    const bool typed = it != feeds.end() && it->second.is_tensor() && input->type().is_tensor();
    if (typed && input->dtype() != it->second.tensor().dtype()) {
      return InvalidArgument("input '" + input->name() + "' is " + input->type().ToString() + ", got " +
                             DTypeName(it->second.tensor().dtype()) + it->second.tensor().shape().ToString());
    }
  }
  if (!missing.empty()) return InvalidArgument("no value given for input(s) " + missing);
  if (used != feeds.size()) {
    std::string unknown;
    for (const auto& [name, value] : feeds) {
      const Value* input = graph().FindValue(name);
      if (input == nullptr || !graph().IsGraphInput(input)) unknown += (unknown.empty() ? "'" : ", '") + name + "'";
    }
    return InvalidArgument("the program has no input(s) " + unknown);
  }
  return ordered;
}

std::shared_ptr<ValueCache> ParameterGraph::CacheOf(const std::shared_ptr<const ExecutionPlan>& plan) {
  std::lock_guard<std::mutex> lock(mutex_);
  // Plans that fell out of the plan cache leave theirs behind; runs in flight hold what they use.
  if (caches_.size() > PlanCache::kMaxPlans) caches_.clear();
  Cached& cached = caches_[plan.get()];
  if (cached.plan == nullptr) cached = {plan, std::make_shared<ValueCache>(plan->cache_entries())};
  return cached.cache;
}

Result<StartedRun> ParameterGraph::Start(std::vector<RuntimeValue> feeds, RunOptions options,
                                         const std::vector<FeedSpec>& known) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const ExecutionPlan> plan, Plan(feeds, known));
  StartedRun run{CacheOf(plan), states_.Borrow(plan)};
  options.cache = run.cache.get();
  RETURN_IF_ERROR(run.state->Start(std::move(feeds), std::move(options)));
  return run;
}

Result<std::vector<RuntimeValue>> ParameterGraph::Run(std::vector<RuntimeValue> feeds, RunOptions options,
                                                      bool* wrote, const std::vector<FeedSpec>& known) {
  ASSIGN_OR_RETURN(StartedRun run, Start(std::move(feeds), std::move(options), known));
  const Result<RunOutcome> outcome = PartialExecutor::Run(*run.state);
  if (wrote != nullptr) *wrote = outcome.ok() || HasWritten(*run.state);
  std::vector<RuntimeValue> results = run.state->TakeFetches();
  Return(std::move(run));
  if (!outcome.ok()) return outcome.status();
  if (*outcome != RunOutcome::kFinished) return Internal("a program without yields has yielded");
  return results;
}

Status RunForwardPasses(Model& model, const std::vector<std::string>& trainable,
                        const std::vector<std::string>& disabled_passes) {
  std::unordered_set<std::string> changing(trainable.begin(), trainable.end());
  for (const Value* value : RunningStatistics(*model.graph)) changing.insert(value->name());
  return RunPasses(ForwardPasses(std::move(changing)), model, disabled_passes).status();
}

Status AddParameters(Graph& graph, const std::vector<std::string>& names, ParameterSet* parameters, bool share) {
  for (const std::string& name : names) {
    Value* value = graph.FindValue(name);
    Tensor own = *graph.Initializer(value);
    if (!share) {
      ASSIGN_OR_RETURN(own, own.Clone());
    }
    graph.SetInitializer(value, own);
    parameters->Add(name, std::move(own));
  }
  return {};
}

void ShareParameters(const ParameterSet& parameters, int count, Graph* graph) {
  for (int i = 0; i < count; ++i) graph->SetInitializer(graph->FindValue(parameters.name(i)), parameters.tensor(i));
}

Result<int> FindReplaceable(const ParameterSet& parameters, const std::string& name, const Tensor& value) {
  const int i = parameters.Find(name);
  if (i < 0) return NotFound("there is no parameter '" + name + "'");
  const Tensor& own = parameters.tensor(i);
  if (own.dtype() == value.dtype() && own.shape() == value.shape()) return i;
  return InvalidArgument("parameter '" + name + "' is " + DTypeName(own.dtype()) + own.shape().ToString() + ", got " +
                         DTypeName(value.dtype()) + value.shape().ToString());
}

}  // namespace caesura
