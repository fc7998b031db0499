// SPDX-License-Identifier: Apache-2.0
// StepRuns: the programs of a training session, and their runs: steps, evaluations, predictions.
#ifndef CAESURA_TRAINING_SESSION_STEP_RUNS_H_
#define CAESURA_TRAINING_SESSION_STEP_RUNS_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "training/session/training_options.h"

namespace caesura {

class ExecutionObserver;    // core/execute/execution_observer.h
class ExecutionPlan;        // core/plan/execution_plan.h
class OpBinding;            // core/custom_ops/op_binding.h
class ParameterSet;         // core/execute/parameter_set.h
class Program;              // core/runtime/program.h
class ProviderFallback;     // core/runtime/provider_fallback.h
class RankGroup;            // rank_group.h
class RunControl;           // run_control.h
class SessionParameters;    // session_parameters.h
class TrainingCurves;       // training/files/training_curves.h
enum class Undo : uint8_t;  // core/runtime/program.h
struct Checkpoint;          // training/files/checkpoint.h
struct CpuFallbackReport;   // graph_transforms/shapes/cpu_fallback.h
struct RunOptions;          // core/execute/run_options.h
struct RunResult;           // core/runtime/program.h
struct StepOptions;         // training/step/step_options.h
struct StepProgram;         // training/step/step_program.h
struct TrainingProgress;    // training_progress.h
struct WaitingStep;         // waiting_step.h

// The result of an evaluation.
struct Evaluation {
  double loss = 0;
  std::vector<RuntimeValue> outputs;  // the model's, in its order
};

// Runs programs on the session's parameters. A step that fails has changed nothing, or says that it
// is lost (TrainingSession::Step). Thread safety: one thread at a time.
class StepRuns {
 public:
  // References are to parts of the session, which outlive this. `trainable`: names of parameters.
  StepRuns(const TrainingOptions& options, std::vector<std::string> trainable, RunControl& control,
           SessionParameters& parameters, TrainingProgress& progress, RankGroup& ranks,
           std::shared_ptr<ProviderFallback> fallback);
  ~StepRuns();

  // The program of a step with these options, which need not be the session's own, as it is before
  // any pass for our kernels. `prepare` may change the forward before its gradients are built.
  Result<StepProgram> BuildProgram(const StepOptions& step, bool is_update,
                                   const std::function<Status(Model&)>& prepare) const;
  const TrainingOptions& options() const { return options_; }
  // Inputs of the programs that are not the model's, as they are in the next step.
  const NamedValues& ProgramFeeds();

  // Makes the programs from the parameters' model, for the ranks there are: at first, and after
  // RankGroup::Replace. Fails listing all nodes that have no gradient or no kernel.
  Status MakePrograms();

  // A micro-step; one that updates with `is_update`. Returns the loss before the update.
  Result<double> Step(bool is_update, const NamedValues& feeds,
                      std::vector<ExecutionObserver*> observers);
  Result<Evaluation> Evaluate(const NamedValues& feeds);
  Result<std::vector<RuntimeValue>> Predict(const NamedValues& feeds);
  // The plan of a step that updates on such feeds, made but not run: for reports, by headers that
  // are not installed.
  Result<std::shared_ptr<const ExecutionPlan>> Plan(const NamedValues& feeds);
  // The peak of the bytes that such a step takes beside parameters and feeds, before it runs.
  Result<size_t> StepBytes(const NamedValues& feeds);

  // --- a step that waits ---
  // No other one begins and no parameter is set before Resume or Drop.
  bool suspended() const;
  Result<double> Resume(std::vector<ExecutionObserver*> observers);
  Status Drop();
  // The ways in which the step that waits may round otherwise than in the session that began it;
  // empty: not.
  const std::vector<std::string>& differences() const;
  // Adds the step that waits, if one does, to a checkpoint.
  Status Save(Checkpoint& to) const;
  // The checkpoint's step on this session's programs; none, if it has none.
  Result<WaitingStep> TakeUp(const Checkpoint& from);
  // Goes on from a checkpoint that was restored, with its step or with none.
  void GoOn(WaitingStep waiting);

  // --- what steps go by ---
  // From here on the base learning rate, in place of the optimizer's; also of the step that waits,
  // as far as it has not updated parameters yet.
  void set_learning_rate(double rate);
  // REQUIRES: StepOptions::fed_coefficients. What the next steps are fed, in its order, a row a
  // group and a last one for the parameters of none. They start as the optimizers' own.
  std::span<double> coefficients();

  // --- what they leave ---
  // Outputs that the last step has kept, in the order of StepOptions::keep_outputs.
  const std::vector<RuntimeValue>& kept_outputs() const { return kept_outputs_; }
  // Gradients of the last step, in the order of the trained parameters. None without
  // StepOptions::keep_gradients.
  const std::vector<RuntimeValue>& gradients() const { return gradients_; }
  // The global norm of the gradients of the last update, before clipping; NaN before the first one
  // and without StepOptions::clip_norm.
  double gradient_norm() const { return gradient_norm_; }
  // The failures so far, and what TrainingOptions::failures did about it.
  const FailureCounts& failures() const { return failures_; }
  // Losses and learning rates of the updates since the session was made or restored. Of an update
  // with several micro-steps the mean of their losses.
  const TrainingCurves& curves() const { return *curves_; }
  // The program of an updating step, for reports.
  const Graph& step_graph() const;
  // The parts of it that went to the host for the sake of shapes, if there is a device
  // (CAESURA_AGGRESSIVE_CPU_FALLBACK).
  const CpuFallbackReport& cpu_fallback() const { return *cpu_fallback_; }

 private:
  struct Request;
  // After parameters().Set of a frozen value, or Bind of one that was on a device.
  Status Refresh();
  // The parameters' model, after the passes that come before gradients.
  Result<Model> ForwardModel(OpBinding& ops) const;
  // A program as the session runs it, with its parameters in `set`.
  Result<std::unique_ptr<Program>> Prepare(StepProgram program, const ParameterSet& set,
                                           CpuFallbackReport* report) const;
  Result<std::unique_ptr<Program>> MakeStep(const Model& model, bool is_update);
  Result<std::unique_ptr<Program>> MakeStepInParts(const Model& model, bool is_update);
  Result<std::unique_ptr<Program>> MakeEvaluation(const Model& model, bool with_loss) const;
  Status FillCoefficients();
  // The learning rate that the next update goes by: the first group's, where the session is fed it.
  double AppliedRate();
  // As above, where `accumulated` others of its update have come before.
  const NamedValues& ProgramFeeds(int64_t accumulated);
  static double ScalarOf(const RuntimeValue& output);
  Program& ProgramOf(bool is_update) const { return is_update ? *update_ : *accumulate_; }
  RunOptions MakeRun(uint64_t step);
  Undo UndoOfSteps() const;
  void Wait(WaitingStep waiting);
  // Settles the session when a run of a step is over, or waits.
  Result<double> EndRun(bool is_update, RunResult result);

  // --- step_failures.cc: the answers to steps that fail (FailurePolicy) ---
  std::string DescribeLoss() const;
  std::string WayBack() const;
  std::string NextOfRanks() const;
  // Gives a step that has failed another result, where it is done again. True: it is skipped.
  bool AnswerFailure(const Request& request, RunResult& result);
  RunResult RunAgain(const Request& request, const Status& cause);
  RunResult RunInParts(const Request& request, const Status& cause);

  const TrainingOptions& options_;
  const std::vector<std::string> trainable_;
  RunControl& control_;
  SessionParameters& parameters_;
  TrainingProgress& progress_;
  RankGroup& ranks_;
  const std::shared_ptr<ProviderFallback> fallback_;
  std::shared_ptr<OpBinding> ops_;
  int made_of_ = -1;  // the version of the parameters that the programs were made of
  std::unique_ptr<Program> update_, accumulate_, evaluate_, predict_;
  std::unique_ptr<Program> parts_update_, parts_accumulate_;  // of kRetryInParts, or null
  // The parameter set of these: the session's parameters, and sums of gradients.
  const std::unique_ptr<ParameterSet> parts_;
  const std::unique_ptr<CpuFallbackReport> cpu_fallback_;  // of update_
  NamedValues program_feeds_;                              // scalars whose values each step sets
  const std::unique_ptr<WaitingStep> waiting_;
  std::vector<RuntimeValue> kept_outputs_, gradients_;
  double gradient_norm_ = std::numeric_limits<double>::quiet_NaN();
  FailureCounts failures_;
  const std::unique_ptr<TrainingCurves> curves_;
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_STEP_RUNS_H_
