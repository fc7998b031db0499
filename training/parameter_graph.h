// SPDX-License-Identifier: Apache-2.0
// A graph some of whose initializers are the entries of a ParameterSet: plans by feed signature, idle states and value
// caches kept from run to run. What training sessions and split modules run their programs with.
#ifndef CAESURA_TRAINING_PARAMETER_GRAPH_H_
#define CAESURA_TRAINING_PARAMETER_GRAPH_H_

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/execute/state_pool.h"
#include "core/plan/plan_cache.h"
#include "core/session/session.h"
#include "graph_transforms/cpu_fallback.h"

namespace caesura {

// A run that was started, with the cache that it uses. Give it back with ParameterGraph::Return.
struct StartedRun {
  std::shared_ptr<ValueCache> cache;
  std::unique_ptr<ExecutionState> state;
};

// Thread safety: all methods from any thread.
class ParameterGraph {
 public:
  // Ops without a kernel are expanded, the passes run, then PlacementPasses. `parameters`: names of initializers of
  // `graph`, in the order of the ParameterSets that runs bring. `memory_budget`: bytes that an arena may take, by
  // recomputing parts of the forward in the backward (graph_transforms/recompute.h); 0: no limit.
  static Result<std::unique_ptr<ParameterGraph>> Create(std::shared_ptr<Graph> graph,
                                                        const std::vector<std::string>& parameters,
                                                        const ProviderList& providers, PlanOptions options,
                                                        const PassList& passes = {},
                                                        const std::vector<std::string>& disabled_passes = {},
                                                        size_t memory_budget = 0);

  const Graph& graph() const { return *plans_.graph(); }
  // What went to the host for the sake of shapes, where there is a device.
  const CpuFallbackReport& cpu_fallback() const { return cpu_fallback_; }
  // Feeds by name to plan order; all missing or unknown names at once are an error. `extra` are feeds that the caller
  // of the caller does not know of (learning rate, step).
  Result<std::vector<RuntimeValue>> Order(const NamedValues& feeds, const NamedValues& extra) const;
  // `known` (here and below) as PlanCache::Get has it. kOutOfMemory where no plan takes as little as the budget.
  Result<std::shared_ptr<const ExecutionPlan>> Plan(const std::vector<RuntimeValue>& feeds,
                                                    const std::vector<FeedSpec>& known = {});
  // A run started on these feeds. `options.parameters` outlives it, and only the run itself changes them meanwhile.
  Result<StartedRun> Start(std::vector<RuntimeValue> feeds, RunOptions options, const std::vector<FeedSpec>& known = {});
  // Drops what the run holds and keeps its memory for the next one.
  void Return(StartedRun run) { states_.Return(std::move(run.state)); }
  // The graph's outputs. `wrote` tells of a failed run whether a step of it has
  // written to a parameter; one that came to its end counts as such.
  Result<std::vector<RuntimeValue>> Run(std::vector<RuntimeValue> feeds, RunOptions options, bool* wrote = nullptr,
                                        const std::vector<FeedSpec>& known = {});

 private:
  struct Cached {
    std::shared_ptr<const ExecutionPlan> plan;  // held, so that its address stays its own
    std::shared_ptr<ValueCache> cache;
  };
  ParameterGraph(std::shared_ptr<const Graph> graph, const ProviderList& providers, PlanOptions options, size_t budget)
      : plans_(std::move(graph), providers, std::move(options)), memory_budget_(budget) {}
  std::shared_ptr<ValueCache> CacheOf(const std::shared_ptr<const ExecutionPlan>& plan);

  PlanCache plans_;
  CpuFallbackReport cpu_fallback_;
  const size_t memory_budget_;
  StatePool states_{/*capacity=*/16};
  std::mutex mutex_;
  std::unordered_map<const ExecutionPlan*, Cached> caches_;
  struct Fitted {
    std::shared_ptr<const ExecutionPlan> plan, within;
  };
  std::unordered_map<const ExecutionPlan*, Fitted> fitted_;  // by the plan that takes more than the budget
};

// The forward passes, on a model whose initializers named in `trainable` and running statistics change between runs.
Status RunForwardPasses(Model& model, const std::vector<std::string>& trainable,
                        const std::vector<std::string>& disabled_passes);

// Adds copies of the graph's initializers of these names, and makes them the graph's own too; with `share` it adds the
// initializers themselves.
Status AddParameters(Graph& graph, const std::vector<std::string>& names, ParameterSet* parameters, bool share = false);
// Makes the first `count` parameters the initializers of their names: one copy of them in memory.
void ShareParameters(const ParameterSet& parameters, int count, Graph* graph);

// The index of parameter `name`: kNotFound when there is none, kInvalidArgument when `value` has another dtype or shape.
Result<int> FindReplaceable(const ParameterSet& parameters, const std::string& name, const Tensor& value);

}  // namespace caesura

#endif  // CAESURA_TRAINING_PARAMETER_GRAPH_H_
