// SPDX-License-Identifier: Apache-2.0
// A graph together with the ParameterSet that its plans read and write: plans by feed signature, states and value
// caches kept from run to run.
#ifndef CAESURA_TRAINING_PARAMETER_GRAPH_H_
#define CAESURA_TRAINING_PARAMETER_GRAPH_H_

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/execute/execution_state.h"
#include "core/plan/plan_cache.h"
#include "core/session/session.h"

namespace caesura {

// Thread safety: one thread at a time.
class ParameterGraph {
 public:
  // `parameters`: names of initializers of `graph` in the order of `set`, which outlives this.
  ParameterGraph(std::shared_ptr<const Graph> graph, const std::vector<std::string>& parameters, ParameterSet* set,
                 const ProviderList& providers, PlanOptions options);

  const Graph& graph() const { return *graph_; }
  // Feeds by name to plan order; all missing or unknown names at once are an error. `extra` are feeds that the caller
  // of the caller does not know of (learning rate, step).
  Result<std::vector<RuntimeValue>> Order(const NamedValues& feeds, const NamedValues& extra) const;
  Result<std::shared_ptr<const ExecutionPlan>> Plan(const std::vector<RuntimeValue>& feeds) { return plans_.Get(feeds); }
  // A state started on these feeds. It stays the graph's; the next Start with the same signature takes it again.
  Result<ExecutionState*> Start(std::vector<RuntimeValue> feeds, RunOptions options);
  // The graph's outputs.
  Result<std::vector<RuntimeValue>> Run(std::vector<RuntimeValue> feeds, RunOptions options);

 private:
  struct Ready {
    std::unique_ptr<ExecutionState> state;
    std::unique_ptr<ValueCache> cache;
  };
  static PlanOptions Options(const Graph& graph, const std::vector<std::string>& parameters, PlanOptions options,
                             const ProviderList& providers);

  std::shared_ptr<const Graph> graph_;
  ParameterSet* set_;
  PlanCache plans_;
  std::unordered_map<const ExecutionPlan*, Ready> ready_;
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_PARAMETER_GRAPH_H_
