// SPDX-License-Identifier: Apache-2.0
// A graph some of whose initializers are the entries of a ParameterSet, on a session's providers.
// What training sessions and split modules run their programs with.
#ifndef CAESURA_TRAINING_PARAMETER_GRAPH_H_
#define CAESURA_TRAINING_PARAMETER_GRAPH_H_

#include <memory>
#include <string>
#include <vector>

#include "core/session/provider_bound.h"
#include "core/session/session.h"
#include "training/parameter_program.h"

namespace caesura {

// A run that waits at the graph's yield.
struct YieldedRun {
  ProviderBound<ParameterProgram>::Held on;
  StartedRun started;
  // To do it again where the providers fail; empty where none can.
  std::vector<RuntimeValue> feeds;
  RunOptions options;
};

// Runs whose provider fails are done again on the session's default providers
// (core/session/provider_fallback.h), with the parameters as they were before.
//
// Thread safety: all methods from any thread.
class ParameterGraph {
 public:
  // The graphs of a session share their `fallback`. Ops without a kernel are expanded, the passes
  // run, then PlacementPasses; where providers fail at that, on the default providers.
  static Result<std::unique_ptr<ParameterGraph>> Create(std::shared_ptr<Graph> graph,
                                                        std::shared_ptr<ProviderFallback> fallback,
                                                        ParameterGraphOptions options);

  // As it was prepared when it was created.
  const Graph& graph() const { return *graph_; }
  // What went to the host for the sake of shapes, where there is a device.
  const CpuFallbackReport& cpu_fallback() const { return cpu_fallback_; }
  // Feeds by name to plan order; all missing or unknown names at once are an error. `extra` are
  // feeds that the caller of the caller does not know of (learning rate, step).
  Result<std::vector<RuntimeValue>> Order(const NamedValues& feeds, const NamedValues& extra) const;
  // `known` (here and below) as PlanCache::Get has it. kOutOfMemory where no plan takes as little
  // as the budget.
  Result<std::shared_ptr<const ExecutionPlan>> Plan(const std::vector<RuntimeValue>& feeds,
                                                    const std::vector<FeedSpec>& known = {});
  // The graph's outputs. `options.parameters` outlive the run, and only the run itself changes them
  // meanwhile. Where `wrote` is given the run may write to them; it tells of a failed run whether
  // its writes could not be undone.
  Result<std::vector<RuntimeValue>> Run(std::vector<RuntimeValue> feeds, RunOptions options,
                                        bool* wrote = nullptr,
                                        const std::vector<FeedSpec>& known = {});

  // A run up to the graph's only yield, which has handed out its values: state->TakeYielded().
  Result<YieldedRun> RunToYield(std::vector<RuntimeValue> feeds, RunOptions options);
  // Goes on with what the yield takes in, to the graph's outputs. With `keep` the run still waits
  // at its yield behind that, and also where `values` are refused.
  Result<std::vector<RuntimeValue>> Finish(YieldedRun& run, const std::vector<RuntimeValue>& values,
                                           bool keep);
  void Return(YieldedRun run) { run.on.program->Return(std::move(run.started)); }

 private:
  using SharedPlan = std::shared_ptr<const ExecutionPlan>;
  using Held = ProviderBound<ParameterProgram>::Held;
  explicit ParameterGraph(std::shared_ptr<ProviderFallback> fallback)
      : fallback_(std::move(fallback)) {}
  Result<std::vector<RuntimeValue>> RunOnce(ParameterProgram& program, const SharedPlan& plan,
                                            std::vector<RuntimeValue> feeds, RunOptions options,
                                            bool* wrote);
  static Result<std::vector<RuntimeValue>> FinishOnce(YieldedRun& run,
                                                      std::vector<RuntimeValue> values, bool keep);

  const std::shared_ptr<ProviderFallback> fallback_;
  std::unique_ptr<ProviderBound<ParameterProgram>> programs_;
  std::shared_ptr<const Graph> graph_;
  CpuFallbackReport cpu_fallback_;
};

// Of a session or module on these providers (none: the CPU provider), with training's kernels on
// the CPU.
std::shared_ptr<ProviderFallback> TrainingFallback(ProviderList providers, bool enabled);

// A captured graph of calls, forward or backward, on the provider that `make_provider` gives: it
// has no parameters, and the passes are those of a step. threads: per kernel, as PlanOptions has
// it.
Result<std::unique_ptr<ParameterGraph>> OpenCaptured(
    Model model, const ProviderFallback::MakeProvider& make_provider, int threads);

// The forward passes, on a model whose initializers named in `trainable` and running statistics
// change between runs.
Status RunForwardPasses(Model& model, const std::vector<std::string>& trainable,
                        const std::vector<std::string>& disabled_passes);

// Names of the running statistics that a model in training updates, in the order of its values.
std::vector<std::string> StatisticNames(const Graph& graph);

// Gives graphs that share initializers of these names copies of them, shared as before. One after
// the other: no two copies of all are held at any time, unless others hold them.
Status CopyInitializers(const std::vector<std::string>& names, const std::vector<Graph*>& graphs);
// Adds the graph's initializers of these names, not copied.
void AddParameters(const Graph& graph, const std::vector<std::string>& names,
                   ParameterSet* parameters);
// Makes the first `count` parameters the initializers of their names: one copy of them in memory.
void ShareParameters(const ParameterSet& parameters, int count, Graph* graph);

// kInvalidArgument where `value` has another dtype or shape than parameter `name` has.
Status CheckReplaceable(const std::string& name, const Tensor& own, const Tensor& value);
// The index of parameter `name`: kNotFound when there is none, kInvalidArgument when `value` has
// another dtype or shape.
Result<int> FindReplaceable(const ParameterSet& parameters, const std::string& name,
                            const Tensor& value);

}  // namespace caesura

#endif  // CAESURA_TRAINING_PARAMETER_GRAPH_H_
