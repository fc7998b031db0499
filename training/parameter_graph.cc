// SPDX-License-Identifier: Apache-2.0
#include "training/parameter_graph.h"

#include <unordered_set>
#include <utility>

#include "core/base/status_macros.h"
#include "core/execute/partial_executor.h"
#include "core/execute/run_cancel.h"
#include "core/profile/run_recorder.h"
#include "core/providers/cpu_provider.h"
#include "graph_transforms/pipeline.h"
#include "training/gradient/training_mode.h"
#include "training/kernels/training_ops.h"
#include "training/write_journal.h"

namespace caesura {

Result<std::unique_ptr<ParameterGraph>> ParameterGraph::Create(
    std::shared_ptr<Graph> graph, std::shared_ptr<ProviderFallback> fallback,
    ParameterGraphOptions options) {
  Model model;
  model.graph = std::move(graph);
  std::unique_ptr<ParameterGraph> out(new ParameterGraph(fallback));
  const auto make = [options = std::move(options)](Model source, const ProviderList& providers) {
    return ParameterProgram::Create(std::move(source), providers, options);
  };
  ASSIGN_OR_RETURN(out->programs_, ProviderBound<ParameterProgram>::Create(std::move(fallback),
                                                                           std::move(model), make));
  ASSIGN_OR_RETURN(const auto now, out->programs_->Now());
  out->graph_ = now.program->shared_graph();
  out->cpu_fallback_ = now.program->cpu_fallback();
  return out;
}

Result<std::vector<RuntimeValue>> ParameterGraph::Order(const NamedValues& feeds,
                                                        const NamedValues& extra) const {
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
    else if (graph().Initializer(input) == nullptr)
      missing += (missing.empty() ? "'" : ", '") + input->name() + "'";
    ordered.push_back(it == feeds.end() ? RuntimeValue() : it->second);
    const bool typed = it != feeds.end() && it->second.is_tensor() && input->type().is_tensor();
    if (typed && input->dtype() != it->second.tensor().dtype()) {
      return InvalidArgument("input '" + input->name() + "' is " + input->type().ToString() +
                             ", got " + DTypeName(it->second.tensor().dtype()) +
                             it->second.tensor().shape().ToString());
    }
  }
  if (!missing.empty()) return InvalidArgument("no value given for input(s) " + missing);
  if (used != feeds.size()) {
    std::string unknown;
    for (const auto& [name, value] : feeds) {
      const Value* input = graph().FindValue(name);
      if (input == nullptr || !graph().IsGraphInput(input))
        unknown += (unknown.empty() ? "'" : ", '") + name + "'";
    }
    return InvalidArgument("the program has no input(s) " + unknown);
  }
  return ordered;
}

Result<std::shared_ptr<const ExecutionPlan>> ParameterGraph::Plan(
    const std::vector<RuntimeValue>& feeds, const std::vector<FeedSpec>& known) {
  return programs_->Run(
      [&](ParameterProgram& program) { return program.Plan(feeds, known); },
      [](const Held&, const SharedPlan& plan) { return Result<SharedPlan>(plan); });
}

Result<std::vector<RuntimeValue>> ParameterGraph::Run(std::vector<RuntimeValue> feeds,
                                                      RunOptions options, bool* wrote,
                                                      const std::vector<FeedSpec>& known) {
  const bool again = fallback_->pending();  // feeds and options may be needed a second time
  return programs_->Run([&](ParameterProgram& program) { return program.Plan(feeds, known); },
                        [&](const Held& now, const SharedPlan& plan) {
                          return RunOnce(*now.program, plan, again ? feeds : std::move(feeds),
                                         again ? options : std::move(options), wrote);
                        });
}

Result<std::vector<RuntimeValue>> ParameterGraph::RunOnce(ParameterProgram& program,
                                                          const SharedPlan& plan,
                                                          std::vector<RuntimeValue> feeds,
                                                          RunOptions options, bool* wrote) {
  WriteJournal journal;
  const bool undoable = wrote != nullptr && fallback_->pending();
  if (undoable) options.observers.push_back(&journal);
  const std::shared_ptr<RunRecorder> recorder = ProcessRecorder();
  if (recorder != nullptr) options.observers.push_back(recorder.get());
  ASSIGN_OR_RETURN(StartedRun run, program.Start(plan, std::move(feeds), std::move(options)));
  const Result<RunOutcome> outcome = PartialExecutor::Run(*run.state);
  if (wrote != nullptr) {
    const bool undone = undoable && !outcome.ok() && journal.Undo(*run.state);
    *wrote = outcome.ok() || (!undone && HasWritten(*run.state));
  }
  std::vector<RuntimeValue> results = run.state->TakeFetches();
  program.Return(std::move(run));
  if (!outcome.ok()) return outcome.status();
  if (*outcome != RunOutcome::kFinished) return Internal("a program without yields has yielded");
  return results;
}

Result<YieldedRun> ParameterGraph::RunToYield(std::vector<RuntimeValue> feeds, RunOptions options) {
  YieldedRun out;
  const bool again = fallback_->pending();
  if (again) {
    out.feeds = feeds;
    out.options = options;
  }
  const auto run = [&](const Held& now, const SharedPlan& plan) -> Result<YieldedRun> {
    out.on = now;
    ASSIGN_OR_RETURN(out.started, now.program->Start(plan, again ? feeds : std::move(feeds),
                                                     again ? options : std::move(options)));
    ASSIGN_OR_RETURN(const RunOutcome outcome, PartialExecutor::Run(*out.started.state));
    if (outcome != RunOutcome::kYielded) return Internal("a module has not stopped at its yield");
    return std::move(out);
  };
  return programs_->Run([&](ParameterProgram& program) { return program.Plan(feeds, {}); }, run);
}

Result<std::vector<RuntimeValue>> ParameterGraph::FinishOnce(YieldedRun& run,
                                                             std::vector<RuntimeValue> values,
                                                             bool keep) {
  StartedRun second{run.started.cache, nullptr};
  if (keep) {
    ASSIGN_OR_RETURN(second.state, run.started.state->Clone());
  }
  ExecutionState& state = keep ? *second.state : *run.started.state;
  RETURN_IF_ERROR(state.Resume(std::move(values)));
  const Result<RunOutcome> outcome = PartialExecutor::Run(state);
  std::vector<RuntimeValue> results = state.TakeFetches();
  if (keep) run.on.program->Return(std::move(second));
  if (!outcome.ok()) return outcome.status();
  if (*outcome != RunOutcome::kFinished)
    return Internal("a module with one yield has yielded twice");
  return results;
}

Result<std::vector<RuntimeValue>> ParameterGraph::Finish(YieldedRun& run,
                                                         const std::vector<RuntimeValue>& values,
                                                         bool keep) {
  auto results = FinishOnce(run, values, keep);
  if (results.ok()) return results;
  const auto prepare = [&](ParameterProgram& program) { return program.Plan(run.feeds, {}); };
  RETURN_IF_ERROR(
      programs_->GoOver(run.on.generation, results.status(), FallbackPhase::kRun, prepare));
  // The new program comes to the yield by itself; what it hands out there has been handed out
  // before.
  ASSIGN_OR_RETURN(YieldedRun again, RunToYield(run.feeds, run.options));
  Return(std::exchange(run, std::move(again)));
  results = FinishOnce(run, values, keep);
  return results.ok() ? std::move(results) : fallback_->AfterRetry(results.status());
}

std::shared_ptr<ProviderFallback> TrainingFallback(ProviderList providers, bool enabled) {
  const auto cpu = [] { return MakeCpuProvider(RegisterTrainingKernels); };
  if (providers.empty()) providers.push_back(cpu());
  return std::make_shared<ProviderFallback>(std::move(providers), cpu, enabled);
}

Result<std::unique_ptr<ParameterGraph>> OpenCaptured(
    Model model, const ProviderFallback::MakeProvider& make_provider, int threads) {
  RETURN_IF_ERROR(RegisterTrainingOpSchemas());  // what follows ops without a schema has no shapes,
                                                 // and is not fused
  ParameterGraphOptions options{
      .passes = [](const ProviderList& providers) { return StepPasses(providers); }};
  options.plan.threads = threads;
  auto fallback = std::make_shared<ProviderFallback>(ProviderList{make_provider()}, make_provider);
  return ParameterGraph::Create(std::move(model.graph), std::move(fallback), std::move(options));
}

Status RunForwardPasses(Model& model, const std::vector<std::string>& trainable,
                        const std::vector<std::string>& disabled_passes) {
  std::unordered_set<std::string> changing(trainable.begin(), trainable.end());
  for (const std::string& name : StatisticNames(*model.graph)) changing.insert(name);
  return RunPasses(ForwardPasses(std::move(changing)), model, disabled_passes).status();
}

std::vector<std::string> StatisticNames(const Graph& graph) {
  const std::unordered_set<const Value*> statistics = RunningStatistics(graph);
  std::vector<std::string> names;
  for (const Value* value : graph.Values()) {
    if (statistics.count(value)) names.push_back(value->name());
  }
  return names;
}

Status CopyInitializers(const std::vector<std::string>& names, const std::vector<Graph*>& graphs) {
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(const Tensor copy,
                     graphs.front()->Initializer(graphs.front()->FindValue(name))->Clone());
    for (Graph* graph : graphs) graph->SetInitializer(graph->FindValue(name), copy);
  }
  return {};
}

void AddParameters(const Graph& graph, const std::vector<std::string>& names,
                   ParameterSet* parameters) {
  for (const std::string& name : names)
    parameters->Add(name, *graph.Initializer(graph.FindValue(name)));
}

void ShareParameters(const ParameterSet& parameters, int count, Graph* graph) {
  for (int i = 0; i < count; ++i)
    graph->SetInitializer(graph->FindValue(parameters.name(i)), parameters.tensor(i));
}

Result<int> FindReplaceable(const ParameterSet& parameters, const std::string& name,
                            const Tensor& value) {
  const int i = parameters.Find(name);
  if (i < 0) return NotFound("there is no parameter '" + name + "'");
  RETURN_IF_ERROR(CheckReplaceable(name, parameters.tensor(i), value));
  return i;
}

Status CheckReplaceable(const std::string& name, const Tensor& own, const Tensor& value) {
  if (own.dtype() == value.dtype() && own.shape() == value.shape()) return {};
  return InvalidArgument("parameter '" + name + "' is " + DTypeName(own.dtype()) +
                         own.shape().ToString() + ", got " + DTypeName(value.dtype()) +
                         value.shape().ToString());
}

}  // namespace caesura
