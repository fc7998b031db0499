// SPDX-License-Identifier: Apache-2.0
// A graph made ready to run on one list of providers: plans by feed signature, idle states and
// value caches kept from run to run. Sessions, training programs and bodies of control flow run
// through it.
#ifndef CAESURA_CORE_RUNTIME_PREPARED_GRAPH_H_
#define CAESURA_CORE_RUNTIME_PREPARED_GRAPH_H_

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/custom_ops/op_binding.h"
#include "core/execute/partial_executor.h"
#include "core/graph/pass.h"
#include "core/runtime/plan_cache.h"
#include "core/runtime/provider_fallback.h"
#include "core/runtime/state_pool.h"

namespace caesura {

// A run that was started, with the cache that it uses. Give it back with PreparedGraph::Return.
struct StartedRun {
  std::shared_ptr<ValueCache> cache;
  std::unique_ptr<ExecutionState> state;
};

// A run's effect on the parameters.
enum class ParameterState : uint8_t {
  kUnchanged,     // nothing was written
  kCommitted,     // the run has ended and written all
  kUndone,        // the run has failed; what it wrote was put back
  kInconsistent,  // the run has failed in the middle of its updates
};
// The state of the parameters after a run, and the parameters that a failed run has changed.
struct ParameterEffect {
  ParameterState state = ParameterState::kUnchanged;
  std::vector<std::string> inconsistent = {};  // what a failed run has written, by name
  bool was_interrupted = false;                // UndoLog::was_interrupted: it can be done again
};

// The recipe for preparing a graph, whatever the providers.
struct PreparedGraphOptions {
  std::vector<std::string> parameters =
      {};  // names of initializers, in the order of the ParameterSets that runs bring
  // The set that runs bring, which outlives the program: parameters are planned where its tensors
  // lie when the graph is prepared. Null: where the model's initializers lie.
  const ParameterSet* parameter_set = nullptr;
  PlanOptions plan = {};
  std::shared_ptr<const OpBinding> ops =
      nullptr;  // with kernels for the graph's custom ops; null: it has none
  // Run once ops without a kernel are expanded into their function bodies. Null: nodes are only
  // offered to providers that compile subgraphs.
  PassMaker passes = nullptr;
  std::vector<std::string> disabled_passes = {};
  PlanFitter fit = nullptr;  // as PlanCache takes it
};

// One graph on one list of providers. Runs must end before it goes. Thread safety: all methods from
// any thread.
class PreparedGraph {
 public:
  // Fails, listing all of them, on nodes that no provider can run.
  static Result<std::shared_ptr<PreparedGraph>> Create(Model model, const ProviderList& given,
                                                       const PreparedGraphOptions& options);
  // A graph that needs no preparation; `captured` as ExecutionPlan::Create has it.
  PreparedGraph(Model model, ProviderList providers, PlanOptions options,
                std::vector<const Value*> captured = {}, PlanFitter fit = nullptr);

  // With the passes applied.
  const std::shared_ptr<const Model>& model() const { return model_; }
  const Graph& graph() const { return *model_->graph; }
  // kOutOfMemory where no plan takes as little memory as the options' `fit` wants.
  Result<SharedPlan> Plan(const std::vector<RuntimeValue>& feeds, const PlanRequest& request = {}) {
    return plans_.Get(feeds, request);
  }
  // A run of one of the graph's plans on these feeds. `options.parameters` outlives it, and only
  // the run itself changes them meanwhile.
  Result<StartedRun> Start(const SharedPlan& plan, std::vector<RuntimeValue> feeds,
                           RunOptions options);
  // A run that goes on from a snapshot, as ExecutionState::Restore does. `options` as Start has
  // them.
  Result<StartedRun> Restore(const SharedPlan& plan, const StateSnapshot& snapshot,
                             RunOptions options);
  // Runs to the end; gives the graph's outputs, and the run back.
  Result<std::vector<RuntimeValue>> RunToEnd(StartedRun run);
  // Ends a run that its caller has run, with this outcome, as RunToEnd does. Undoes a run that has
  // failed where it has a log (RunOptions::undo). `effect`, where given, tells what became of the
  // parameters.
  Result<std::vector<RuntimeValue>> EndRun(StartedRun run, const Result<RunOutcome>& outcome,
                                           ParameterEffect* effect = nullptr);
  // Drops what the run holds and keeps its memory for the next one.
  void Return(StartedRun run) { states_.Return(std::move(run.state)); }

 private:
  struct Cached {
    SharedPlan plan;  // held, so that its address stays its own
    std::shared_ptr<ValueCache> cache;
  };
  std::shared_ptr<ValueCache> CacheOf(const SharedPlan& plan);

  const std::shared_ptr<const Model> model_;
  PlanCache plans_;
  StatePool states_{/*capacity=*/16};
  std::mutex mutex_;
  std::unordered_map<const ExecutionPlan*, Cached> caches_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_RUNTIME_PREPARED_GRAPH_H_
