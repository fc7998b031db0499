// SPDX-License-Identifier: Apache-2.0
// Program: a model made ready to run on a session's providers, and made anew where the session
// falls back to others (provider_fallback.h). Sessions, training sessions and split modules are
// thin users of it.
#ifndef CAESURA_CORE_RUNTIME_PROGRAM_H_
#define CAESURA_CORE_RUNTIME_PROGRAM_H_

#include <memory>
#include <mutex>
#include <vector>

#include "core/runtime/feeds.h"
#include "core/runtime/prepared_graph.h"
#include "core/runtime/provider_fallback.h"

namespace caesura {

// A graph prepared for one list of providers, and whose providers these are
// (ProviderFallback::generation).
struct VersionedGraph {
  std::shared_ptr<PreparedGraph> graph;
  int generation = -1;
};

// One run of a program, from its feeds to the graph's outputs.
struct RunRequest {
  std::vector<RuntimeValue> feeds;  // in the order of the graph's inputs (feeds.h)
  RunOptions options = {};
  PlanRequest plan = {};
  // The run may write to options.parameters: where a provider may fail, what it overwrites is kept
  // until the run has ended.
  bool writes_parameters = false;
};

struct RunResult {
  Status status = {};
  std::vector<RuntimeValue> values = {};  // the graph's outputs, where status is ok
  ParameterState parameters = ParameterState::kUnchanged;

  // The run has failed, and the parameters are not as they were before it.
  bool left_parameters_changed() const {
    return !status.ok() && (parameters == ParameterState::kCommitted ||
                            parameters == ParameterState::kInconsistent);
  }
};

// A run that waits at the graph's yield.
struct YieldedRun {
  VersionedGraph on;
  StartedRun started;
  // To do it again where the providers fail; empty where none can.
  std::vector<RuntimeValue> feeds;
  RunOptions options;
};

// A run whose provider fails is done again on the session's default providers, with the parameters
// as they were before.
//
// Thread safety: all methods from any thread.
class Program {
 public:
  // The programs of a session share their `fallback`. Prepares the graph, on the default providers
  // where the others fail. A copy of `source` (tensors' bytes are shared) is kept as long as a
  // fallback is possible.
  static Result<std::unique_ptr<Program>> Create(Model source,
                                                 std::shared_ptr<ProviderFallback> fallback,
                                                 PreparedGraphOptions options);

  // As it was prepared at creation, whichever providers run it now.
  const Model& model() const { return *model_; }
  const Graph& graph() const { return *model_->graph; }
  // The plan that a run on such feeds gets.
  Result<SharedPlan> Plan(const std::vector<RuntimeValue>& feeds, const PlanRequest& request = {});
  // `options.parameters` outlive the run, and only the run itself changes them meanwhile.
  RunResult Run(RunRequest request);

  // A run up to the graph's only yield, which has handed out its values: state->TakeYielded().
  Result<YieldedRun> RunToYield(std::vector<RuntimeValue> feeds, RunOptions options);
  // Goes on with what the yield takes in, to the graph's outputs. With `keep` the run still waits
  // at its yield afterwards; also where `values` are refused.
  Result<std::vector<RuntimeValue>> RunBackward(YieldedRun& run,
                                                const std::vector<RuntimeValue>& values, bool keep);
  static void Return(YieldedRun run) { run.on.graph->Return(std::move(run.started)); }

 private:
  Program(Model source, std::shared_ptr<ProviderFallback> fallback, PreparedGraphOptions options)
      : fallback_(std::move(fallback)), options_(std::move(options)), source_(std::move(source)) {}
  // The graph on the current providers; prepared if the session fell back through another program.
  Result<VersionedGraph> Current();
  VersionedGraph Get() const;
  VersionedGraph Put(VersionedGraph made);
  // Plans and calls attempt(graph, plan); both again, on the new providers, where the session falls
  // back.
  template <typename Attempt>
  Status WithFallback(const std::vector<RuntimeValue>& feeds, const PlanRequest& request,
                      const Attempt& attempt);
  // As ProviderFallback::SwitchProviders. `feeds`: of the run that the new graph must have a plan
  // for; null: of none.
  Status SwitchProviders(int generation, const Status& cause, FallbackPhase phase,
                         const std::vector<RuntimeValue>* feeds, const PlanRequest& request);
  static Status RunOnce(PreparedGraph& graph, const SharedPlan& plan,
                        std::vector<RuntimeValue> feeds, RunOptions options, bool keeps,
                        RunResult* result);

  const std::shared_ptr<ProviderFallback> fallback_;
  const PreparedGraphOptions options_;
  Model source_;
  std::shared_ptr<const Model> model_;
  std::mutex making_;         // held while the graph is prepared after another program's fallback
  mutable std::mutex mutex_;  // of current_
  VersionedGraph current_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_RUNTIME_PROGRAM_H_
