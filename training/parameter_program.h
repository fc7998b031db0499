// SPDX-License-Identifier: Apache-2.0
// A ParameterGraph's graph, made ready to run on one list of providers: plans by feed signature,
// idle states and value caches kept from run to run.
#ifndef CAESURA_TRAINING_PARAMETER_PROGRAM_H_
#define CAESURA_TRAINING_PARAMETER_PROGRAM_H_

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/execute/state_pool.h"
#include "core/plan/plan_cache.h"
#include "core/session/custom_op.h"
#include "core/session/provider_fallback.h"
#include "graph_transforms/cpu_fallback.h"

namespace caesura {

// A run that was started, with the cache that it uses. Give it back with ParameterProgram::Return.
struct StartedRun {
  std::shared_ptr<ValueCache> cache;
  std::unique_ptr<ExecutionState> state;
};

// What a ParameterGraph is made with, but for the providers.
struct ParameterGraphOptions {
  std::vector<std::string> parameters =
      {};  // names of initializers, in the order of the ParameterSets that runs bring
  PlanOptions plan = {};
  std::shared_ptr<const OpBinding> ops =
      nullptr;            // with kernels for the graph's custom ops; null: it has none
  PassMaker passes = {};  // run once ops without a kernel are expanded, before PlacementPasses
  std::vector<std::string> disabled_passes = {};
  // Bytes that an arena may take, by recomputing parts of the forward in the backward
  // (graph_transforms/recompute.h); 0: no limit.
  size_t memory_budget = 0;
};

// Thread safety: all methods from any thread.
class ParameterProgram {
 public:
  static Result<std::shared_ptr<ParameterProgram>> Create(Model model, const ProviderList& given,
                                                          const ParameterGraphOptions& options);

  const Graph& graph() const { return *plans_.graph(); }
  const std::shared_ptr<const Graph>& shared_graph() const { return plans_.graph(); }
  const CpuFallbackReport& cpu_fallback() const { return cpu_fallback_; }
  // As ParameterGraph::Plan.
  Result<std::shared_ptr<const ExecutionPlan>> Plan(const std::vector<RuntimeValue>& feeds,
                                                    const std::vector<FeedSpec>& known);
  // A run of the program's plan on these feeds. `options.parameters` outlives it, and only the run
  // itself changes them meanwhile.
  Result<StartedRun> Start(const std::shared_ptr<const ExecutionPlan>& plan,
                           std::vector<RuntimeValue> feeds, RunOptions options);
  // Drops what the run holds and keeps its memory for the next one.
  void Return(StartedRun run) { states_.Return(std::move(run.state)); }

 private:
  struct Cached {
    std::shared_ptr<const ExecutionPlan> plan;  // held, so that its address stays its own
    std::shared_ptr<ValueCache> cache;
  };
  ParameterProgram(std::shared_ptr<const Graph> graph, const ProviderList& providers,
                   PlanOptions options, size_t budget)
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
  std::unordered_map<const ExecutionPlan*, Fitted>
      fitted_;  // by the plan that takes more than the budget
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_PARAMETER_PROGRAM_H_
