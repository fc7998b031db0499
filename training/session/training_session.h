// SPDX-License-Identifier: Apache-2.0
// TrainingSession: a model in, a trained model out.
//
//   using namespace caesura;
//   TrainingOptions options;
//   options.step.loss = Loss::CrossEntropy("labels");
//   options.step.optimizer = AdamW{.learning_rate = 1e-3};
//   auto session = TrainingSession::Create(ReadModel("net.onnx").value(), options).value();
//   for (const auto& [images, labels] : batches) {
//     float loss = session->Step({{"images", images}, {"labels", labels}}).value();
//   }
//   session->ExportModel("trained.onnx");
#ifndef CAESURA_TRAINING_SESSION_TRAINING_SESSION_H_
#define CAESURA_TRAINING_SESSION_TRAINING_SESSION_H_

#include <atomic>
#include <chrono>
#include <climits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/runtime/program.h"
#include "graph_transforms/shapes/cpu_fallback.h"
#include "training/files/checkpoint.h"
#include "training/session/failure_policy.h"
#include "training/session/rank_group.h"
#include "training/session/run_control.h"
#include "training/session/session_parameters.h"
#include "training/session/training_options.h"
#include "training/session/training_progress.h"
#include "training/optimizer/lr_schedule.h"
#include "training/step/step_program.h"
#include "training/files/training_curves.h"

namespace caesura {

// The result of Evaluate.
struct Evaluation {
  double loss = 0;
  std::vector<RuntimeValue> outputs;  // the model's, in its order
};

// Trains one model, whose parameters and optimizer state it owns.
//
// Thread safety: one thread at a time. Several sessions are independent of each other.
class TrainingSession {
 public:
  // Trains `model`, whose initializers become the session's parameters. Fails listing all nodes
  // that have no gradient or no kernel.
  static Result<std::unique_ptr<TrainingSession>> Create(Model model, TrainingOptions options = {});

  // One (micro-)step: forward in training mode, loss, backward; and, after every accumulation_steps
  // of them, one update. Returns the loss before the update.
  //
  // A step that fails has changed nothing: parameters, optimizer state, statistics, random numbers.
  // CommitMode::kLate writes last; what it writes while a step may still fail is undone then
  // (undo_log.h). CommitMode::kEagerConsume needs TrainingOptions::undo for that. Without it the
  // error says that the step is lost and which parameters it has written, and further steps fail
  // until a Restore. Where a provider other than the CPU's has failed the step is done again on the
  // default providers; TrainingOptions::failures has answers to other failures.
  //
  // With a scaled loss an update whose gradients are not finite does not happen (updates() stays);
  // it fails when no scale is small enough.
  //
  // With other ranks: all of them make the same calls. The loss of a step that updates is the mean
  // over the ranks; with logical_shards it is the mean of all shards, on one rank, too. A step that
  // fails with kRankFailure, or only on this rank, has changed nothing here, and ends the
  // communicator: the others' step fails likewise. A step that is lost, as above, is lost for all
  // ranks: all Restore the last checkpoint. A suspension is agreed: after the step in which a rank
  // is asked to suspend, Step fails with kSuspended on all ranks before it begins.
  Result<double> Step(const NamedValues& feeds, std::vector<ExecutionObserver*> observers = {});
  // If accumulation_steps is 0: a micro-step that only accumulates its gradients. The next Step
  // updates with the mean gradient of these micro-steps and its own. Returns the loss; fails where
  // accumulation_steps is not 0.
  Result<double> Accumulate(const NamedValues& feeds,
                            std::vector<ExecutionObserver*> observers = {});

  // The failures so far, and what TrainingOptions::failures did about it.
  const FailureCounts& failures() const { return failures_; }

  // --- a step that waits in its middle ---
  // Stops runs from outside: a suspension, a deadline, a termination.
  RunControl& control() { return control_; }
  const RunControl& control() const { return control_; }
  // A step waits. No other one begins and no parameter is set before ResumeStep or DropStep. Save
  // writes the step too, and Restore takes it up, in another process if need be: there ResumeStep
  // ends it with the same bits, unless threads or providers are others (StepDifferences).
  bool suspended() const { return waiting_.run != nullptr; }
  // Goes on with the step that waits, to its end: returns what Step would have returned. A failure
  // is its caller's, whatever TrainingOptions::failures says: the batch is no more there.
  Result<double> ResumeStep(std::vector<ExecutionObserver*> observers = {});
  // Gives up the step that waits. Fails, as a step does that fails in the middle of its updates,
  // where it has begun to write to parameters.
  Status DropStep();
  // The ways in which the step that waits may round otherwise than in the session that began it;
  // empty: not.
  const std::vector<std::string>& StepDifferences() const { return waiting_.differences; }

  // Forward and loss in evaluation mode (running statistics, no dropout); nothing changes. Fails
  // with kSuspended, as Predict does, where it is suspended (set_suspend): call it again then.
  Result<Evaluation> Evaluate(const NamedValues& feeds);
  // Forward in evaluation mode; the feeds are the model's inputs alone.
  Result<std::vector<RuntimeValue>> Predict(const NamedValues& feeds);

  // The parameters: to read, set or bind them by name.
  SessionParameters& parameters() { return *parameters_; }
  const SessionParameters& parameters() const { return *parameters_; }
  // How far the run has come: updates, learning rate, losses. Its counters may be set between
  // steps.
  TrainingProgress& progress() { return progress_; }
  const TrainingProgress& progress() const { return progress_; }
  // REQUIRES: StepOptions::fed_coefficients. What the next steps are fed, in its order, a row a
  // group and a last one for the parameters of none. They start as the optimizers' own.
  std::span<double> coefficients();
  // From here on the base learning rate, in place of the optimizer's; also of the step that waits,
  // as far as it has not updated parameters yet.
  void set_learning_rate(double rate);

  // Outputs that the last step has kept, in the order of StepOptions::keep_outputs.
  const std::vector<RuntimeValue>& kept_outputs() const { return kept_outputs_; }
  // Gradients of the last step, in the order of the trained parameters. None without
  // StepOptions::keep_gradients.
  const std::vector<RuntimeValue>& gradients() const { return gradients_; }

  // Parameters, statistics, frozen values that were set, optimizer state, schedule position,
  // random counters, and the step that waits; see training/files/checkpoint.h for what a crash
  // leaves behind. `properties` are the caller's own (a sampler's position). Where state is sharded
  // all ranks call it, rank 0 gets all parts and writes the file, and all learn whether it is
  // there. Such a checkpoint is that of an unsharded session: any number of ranks restores it.
  Status Save(const std::string& path,
              std::map<std::string, Checkpoint::Property> properties = {}) const;
  // Fails, with the session as it was, when the checkpoint does not fit; lists everything that does
  // not. Where memory or a device fails while parameters are written, all of them count as
  // inconsistent: no step begins before a Restore that succeeds. Returns the caller's properties.
  // Frozen parameters take what the checkpoint has for them, and the model's own values where it
  // has none.
  Result<std::map<std::string, Checkpoint::Property>> Restore(const std::string& path);

  // Writes SessionParameters::TrainedModel to a file.
  Status ExportModel(const std::string& path, const std::vector<std::string>& outputs = {}) const;

  // Losses and learning rates of the updates since the session was made or restored. Of an update
  // with several micro-steps the mean of their losses.
  const TrainingCurves& curves() const { return curves_; }

  // The plan of a step on such feeds, made but not run: its arena_bytes() is the peak memory of a
  // step.
  Result<std::shared_ptr<const ExecutionPlan>> StepPlan(const NamedValues& feeds);
  // The program of an updating step, for reports.
  const Graph& step_graph() const { return update_->graph(); }
  // The parts of it that went to the host for the sake of shapes, if there is a device
  // (CAESURA_AGGRESSIVE_CPU_FALLBACK).
  const CpuFallbackReport& cpu_fallback() const { return cpu_fallback_; }

  // Goes on with these ranks, after a rank was lost or with others; null: by itself. All of them
  // call it. They take the parameters, optimizer state and position of the one that has done the
  // most updates (the first of these): where some have done the step in which a rank was lost, all
  // have. Then the session is as good as new. Accumulation begins anew. Fails with
  // kInvalidArgument, on all ranks, where the ranks' programs differ or no rank has whole
  // parameters. Sharded state goes with its rank: only the same ranks go on, where each has done
  // the same updates. Otherwise this fails, and a new session has to Restore the last checkpoint.
  Status Regroup(std::shared_ptr<Communicator> communicator);
  // The other ranks, if there are any: plan, communicator, memory.
  const RankGroup& ranks() const { return *ranks_; }

  // --- provider fallback (core/runtime/provider_fallback.h), as in Session ---
  void DisableFallback() { fallback_->set_enabled(false); }
  void EnableFallback() { fallback_->set_enabled(true); }
  std::vector<std::string> providers() const { return fallback_->provider_names(); }
  std::optional<FallbackRecord> fallback_record() const { return fallback_->record(); }

 private:
  TrainingSession() = default;
  Status Prepare(Model model);
  // From original_; once more where frozen values have changed.
  Status MakePrograms();
  Status Refresh() { return made_of_ != parameters_->version() ? MakePrograms() : Status(); }
  // in_parts: for kRetryInParts, with options and sums of gradients of its own.
  Result<std::unique_ptr<Program>> MakeStep(const Model& model, const StepOptions& step,
                                            bool with_update, bool in_parts);
  Status MakeEvaluation(const Model& model);
  Status FillCoefficients();
  // The learning rate that the next update goes by: the first group's, where the session is fed it.
  double AppliedRate();
  // Inputs of the programs that are not the model's, as they are in the next step, which
  // `accumulated` others of its update have come before.
  const NamedValues& ProgramFeeds(int64_t accumulated);
  Result<double> RunStep(bool updates, const NamedValues& feeds,
                         std::vector<ExecutionObserver*> observers);
  // Settles the session when a run of a step is over, or waits.
  Result<double> EndRun(bool updates, RunResult result);
  static double ScalarOf(const Tensor& tensor);
  std::string DescribeLoss() const;
  std::string WayBack() const;
  Undo UndoOfSteps() const;
  // training_session_failures.cc
  Status BringParametersToHost(const ProviderList& providers);
  struct StepRequest {
    bool updates;
    const NamedValues& feeds;
    RunRequest run;
  };
  Status CheckFailures(const RankPlan& plan) const;
  // Ends a step, done again if need be; `result`: of its first run.
  Result<double> AnswerFailure(const StepRequest& request, RunResult result);
  RunResult RunAgain(const StepRequest& request, const Status& cause);
  RunResult RunInParts(const StepRequest& request, const Status& cause);
  Result<std::unique_ptr<SuspendedRun>> TakeUp(const StateSnapshot& step, bool updates);
  RunOptions MakeRun(uint64_t step);

  TrainingOptions options_;
  std::shared_ptr<ProviderFallback> fallback_;
  std::vector<std::string> trainable_;
  std::shared_ptr<OpBinding> ops_;
  std::unique_ptr<SessionParameters> parameters_;
  TrainingProgress progress_;
  RunControl control_;
  std::unique_ptr<RankGroup> ranks_;
  int made_of_ = -1;  // the version of the parameters that the programs were made of
  std::unique_ptr<Program> update_, accumulate_, evaluate_, predict_;
  CpuFallbackReport cpu_fallback_;  // of update_
  std::vector<RuntimeValue> kept_outputs_, gradients_;
  NamedValues program_feeds_;  // scalars whose values each step sets
  struct WaitingStep {
    std::unique_ptr<SuspendedRun> run;  // null: no step waits
    bool updates = false;
    std::vector<std::string> differences;
    std::optional<uint64_t> seed = std::nullopt;  // of DrawNextBy
  };
  WaitingStep waiting_;
  TrainingCurves curves_;
  FailureCounts failures_;
  std::unique_ptr<Program> parts_update_, parts_accumulate_;  // of kRetryInParts, or null
  ParameterSet parts_parameters_;  // of these: those of the session, and sums of gradients
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_TRAINING_SESSION_H_
