// SPDX-License-Identifier: Apache-2.0
// Program: a model made ready to run on a session's providers, and made anew where the session
// falls back to others (provider_fallback.h). Sessions, training sessions and split modules are
// thin users of it.
#ifndef CAESURA_CORE_RUNTIME_PROGRAM_H_
#define CAESURA_CORE_RUNTIME_PROGRAM_H_

#include <climits>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/execute/undo_log.h"
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

// When a run keeps what it overwrites of options.parameters (undo_log.h). Each of these includes
// those before it.
enum class Undo : uint8_t {
  kNever,
  kForRetry,  // where a provider may fail, so that the run can be done again elsewhere
  kAtRisk,    // where a step may fail after the first write, or an observer watches
  kAlways,    // costs a copy of all that the run writes, in time and in memory
};

// The answer of a run to a YieldOp of its graph.
enum class AtYield : uint8_t {
  kFail,  // such a graph is refused
  // Hands the yield's values out and waits (WaitingRun). What it has handed out is the caller's, so
  // the run is not done again where a provider fails later.
  kWait,
  // The same, but where a provider fails between the first yield and the next one, the run is done
  // again up to the first, without handing anything out, and goes on from there. Feeds stay
  // unchanged until the run has ended.
  kWaitAndRepeat,
};

// One run of a program, from its feeds to the graph's outputs.
struct RunRequest {
  std::vector<RuntimeValue> feeds;  // in the order of the graph's inputs (feeds.h)
  RunOptions options = {};
  PlanRequest plan = {};
  Undo undo = Undo::kNever;
  int suspend_at = INT_MAX;  // the run is suspended before this step of its plan
  AtYield at_yield = AtYield::kFail;
};

class Program;
struct RunResult;

// A run that waits: at a yield of its graph, or before a step. It keeps its graph alive, but only
// GoOn needs the program. Without GiveUp its destructor drops it: its memory is the next run's, and
// what it has written to parameters stays.
//
// Thread safety: one thread at a time, which may be another one for each call.
class WaitingRun {
 public:
  // The way in which a run goes on.
  struct Rest {
    // For the yield that it waits at, which takes them in; some may be absent.
    std::vector<RuntimeValue> values = {};
    std::vector<ExecutionObserver*> observers = {};
    int suspend_at = INT_MAX;  // as RunRequest has it
    // A copy of the run goes on, and the run itself waits as before.
    bool keep = false;
  };

  WaitingRun() = default;  // no run
  WaitingRun(WaitingRun&&) noexcept = default;
  WaitingRun& operator=(WaitingRun&&) noexcept = default;

  // True if there is a run. The other methods need one.
  explicit operator bool() const { return run_ != nullptr; }
  // Goes on, on the providers that the run was begun on, to its end or to where it waits next. Then
  // this is no run any more, except with `keep`, or where `values` are refused. REQUIRES: there is
  // a run; with `keep` one that was begun with Undo::kNever.
  RunResult GoOn(Rest rest);
  // Gives the run up, and undoes what it has written where it has a log of it.
  ParameterEffect GiveUp();
  // Gives what another process needs to go on (Program::Restore).
  Result<StateSnapshot> Capture() const { return state().Capture(); }
  ExecutionState& state() const;

 private:
  friend class Program;
  struct Run;
  struct Drop {
    void operator()(Run* run) const;
  };
  explicit WaitingRun(Run run);
  Result<WaitingRun> Clone() const;
  // GoOn without a second try and without Rest::keep.
  Status Continue(const Rest& rest, RunResult* result);

  std::unique_ptr<Run, Drop> run_;
};

// The result of Program::Run and WaitingRun::GoOn.
struct RunResult {
  // kSuspended: `waiting` has the run, which waits before a step.
  Status status = {};
  // If status is ok: the graph's outputs; or, if `waiting` has the run, the values that the yield
  // that it waits at has handed out.
  std::vector<RuntimeValue> values = {};
  ParameterEffect parameters = {};
  WaitingRun waiting = {};
  bool has_begun = false;  // there was a plan for its feeds

  // True if the run could not begin, because no plan is possible for feeds of such shapes.
  bool refused_feeds() const { return !has_begun && status.code() == StatusCode::kInvalidArgument; }
  // The run has failed, and the parameters are not as they were before it.
  bool left_parameters_changed() const {
    return !status.ok() && (parameters.state == ParameterState::kCommitted ||
                            parameters.state == ParameterState::kInconsistent);
  }
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
  // `options.parameters` outlive the run, and only the run itself changes them meanwhile. A run
  // that waits forgets its observers. One that is suspended (RunOptions::suspend,
  // RunRequest::suspend_at) keeps copies of its feeds; at a yield they stay borrowed.
  RunResult Run(RunRequest request);
  // Moves to the session's default providers, as a run does whose provider has failed, after a
  // failure of any kind. `feeds`: of the run that failed. Fails as `cause` did where the session
  // has nowhere to go.
  Status FallBack(const Status& cause, const std::vector<RuntimeValue>& feeds);
  // The run of a snapshot, perhaps of another process. `options` as Run takes them; their
  // parameters hold what the captured run's held. It is not done again where its provider fails, as
  // it has no feeds; nor is undone what it has written before the snapshot. Fails with
  // kInvalidArgument, naming the first thing that does not fit.
  Result<WaitingRun> Restore(const StateSnapshot& snapshot, RunOptions options, Undo undo);

 private:
  friend class WaitingRun;
  Program(Model source, std::shared_ptr<ProviderFallback> fallback, PreparedGraphOptions options)
      : fallback_(std::move(fallback)), options_(std::move(options)), source_(std::move(source)) {}
  // The graph on the current providers; prepared if the session fell back through another program.
  Result<VersionedGraph> Current();
  VersionedGraph Get() const;
  VersionedGraph Put(VersionedGraph made);
  // Plans and calls attempt(graph, plan); both again, on the new providers, where the session falls
  // back. `may_run_again` false after a run has failed: not then.
  template <typename Attempt>
  Status WithFallback(const std::vector<RuntimeValue>& feeds, const PlanRequest& request,
                      const bool& may_run_again, const Attempt& attempt);
  // As ProviderFallback::SwitchProviders. `feeds`: of the run that the new graph must have a plan
  // for; null: of none.
  Status SwitchProviders(int generation, const Status& cause, FallbackStage stage,
                         const std::vector<RuntimeValue>* feeds, const PlanRequest& request);
  Status RunOnce(const VersionedGraph& on, const SharedPlan& plan, RunRequest request,
                 bool may_retry, RunResult* result);
  // Runs on to the end, or to where the run waits.
  static Status Continue(WaitingRun::Run run, int suspend_at, RunResult* result);

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
