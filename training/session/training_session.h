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
//
// Its parts have a header each:
//
//   session->parameters().Get("fc.weight");      // session_parameters.h: read, set, bind
//   session->progress().updates;                 // training_progress.h: counters, learning rate
//   session->runs().set_learning_rate(1e-4);     // step_runs.h: what steps go by and leave
//   session->control().set_suspend(true);        // run_control.h: from any thread
#ifndef CAESURA_TRAINING_SESSION_TRAINING_SESSION_H_
#define CAESURA_TRAINING_SESSION_TRAINING_SESSION_H_

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/runtime/provider_fallback.h"
#include "training/session/export_training.h"
#include "training/session/run_control.h"
#include "training/session/session_parameters.h"
#include "training/session/step_runs.h"
#include "training/session/training_options.h"
#include "training/session/training_progress.h"

namespace caesura {

class RankGroup;  // rank_group.h

// Properties that a caller keeps in a checkpoint (a sampler's position), by name.
using CheckpointProperties = std::map<std::string, std::variant<int64_t, double, std::string>>;

// Trains one model, whose parameters and optimizer state it owns.
//
// Thread safety: one thread at a time, but for RunControl. Several sessions are independent of each
// other.
class TrainingSession {
 public:
  // Trains `model`, whose initializers become the session's parameters. Fails listing all nodes
  // that have no gradient or no kernel.
  static Result<std::unique_ptr<TrainingSession>> Create(Model model, TrainingOptions options = {});
  ~TrainingSession();

  // One (micro-)step: forward in training mode, loss, backward; and, after every accumulation_steps
  // of them, one update. Returns the loss before the update.
  //
  // A step that fails has changed nothing: parameters, optimizer state, statistics, random numbers.
  // CommitMode::kLate writes last; what it writes while a step may still fail is undone
  // then. CommitMode::kEagerConsume needs TrainingOptions::undo for that. Without it the
  // error says that the step is lost and which parameters it has written, and further steps fail
  // until a Restore. Where a provider other than the CPU's has failed the step is done again on the
  // default providers; TrainingOptions::failures has answers to other failures.
  //
  // With a scaled loss an update whose gradients are not finite does not happen (progress().updates
  // stays); it fails when no scale is small enough.
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
  // Goes on with the step that waits (StepRuns::suspended), to its end: returns what Step would
  // have returned. Save writes such a step too, and Restore takes it up, in another process if need
  // be: there ResumeStep ends it with the same bits, unless threads or providers are others
  // (StepRuns::differences). A failure is its caller's, whatever TrainingOptions::failures says:
  // the batch is no more there.
  Result<double> ResumeStep(std::vector<ExecutionObserver*> observers = {}) {
    return runs_->Resume(std::move(observers));
  }
  // Gives up the step that waits. Fails, as a step does that fails in the middle of its updates,
  // where it has begun to write to parameters.
  Status DropStep() { return runs_->Drop(); }

  // Forward and loss in evaluation mode (running statistics, no dropout); nothing changes. Fails
  // with kSuspended, as Predict does, where it is suspended (RunControl): call it again then.
  Result<Evaluation> Evaluate(const NamedValues& feeds) { return runs_->Evaluate(feeds); }
  // Runs the forward in evaluation mode. The feeds are the model's inputs, without targets.
  Result<std::vector<RuntimeValue>> Predict(const NamedValues& feeds) {
    return runs_->Predict(feeds);
  }
  // The memory that this rank keeps; it is known before the first step. Activations are not among
  // it.
  RankMemory Memory() const;
  // The memory of a step with feeds of these dtypes and shapes; nothing runs. Fails as
  // StepRuns::Plan does.
  Result<StepMemory> MemoryOf(const NamedValues& feeds);

  // Parameters, statistics, frozen values that were set, optimizer state, schedule position,
  // random counters, and the step that waits. After a crash at any moment the file is the one saved
  // before or the new one, whole. Where state is sharded all ranks call it, rank 0 gets all parts
  // and writes the file, and all learn whether it is there. Such a checkpoint is that of an
  // unsharded session: any number of ranks restores it.
  Status Save(const std::string& path, CheckpointProperties properties = {}) const;
  // Fails, with the session as it was, when the checkpoint does not fit; lists everything that does
  // not. Where memory or a device fails while parameters are written, all of them count as
  // inconsistent: no step begins before a Restore that succeeds. Returns the caller's properties.
  // Frozen parameters take what the checkpoint has for them, and the model's own values where it
  // has none.
  Result<CheckpointProperties> Restore(const std::string& path);
  // Writes SessionParameters::TrainedModel to a file.
  Status ExportModel(const std::string& path, const std::vector<std::string>& outputs = {}) const;
  // Writes the step, a part of it or its gradients as one ONNX file of ONNX's own operators, from
  // where the session is now. Its inputs are the feeds, the parameters and the optimizer state by
  // their names (SessionParameters::Get), the program's own (training/step/step_program.h) and, for
  // random numbers, those of core/gradient/op_body.h; its outputs those of
  // StepProgram::graph under the names of training/session/export_training.h, and for each input
  // NAME that a step changes its new value (kUpdatedPrefix). Parameters, state, learning rate and
  // seed have what they are now as defaults. Fails with kUnsupported before anything is
  // written, listing all nodes that ONNX, or TrainingExport::opset, has no operators for.
  Status ExportTraining(const std::string& path, const TrainingExport& what = {}) const;

  // Goes on with these ranks, after a rank was lost or with others; null: by itself. All of them
  // call it. They take the parameters, optimizer state and position of the one that has done the
  // most updates (the first of these): where some have done the step in which a rank was lost, all
  // have. Then the session is as good as new. Accumulation begins anew. Fails with
  // kInvalidArgument, on all ranks, where the ranks' programs differ, no rank has whole parameters
  // or one rank cannot go on (a step waits there). Sharded state goes with its rank: only the same
  // ranks go on, where each has done the same updates. Otherwise this fails, and a new session has
  // to Restore the last checkpoint.
  Status Regroup(std::shared_ptr<Communicator> communicator);

  // --- the parts ---
  SessionParameters& parameters() { return *parameters_; }
  const SessionParameters& parameters() const { return *parameters_; }
  // Its counters may be set between steps.
  TrainingProgress& progress() { return *progress_; }
  const TrainingProgress& progress() const { return *progress_; }
  StepRuns& runs() { return *runs_; }
  const StepRuns& runs() const { return *runs_; }
  RunControl& control() { return *control_; }
  const RunControl& control() const { return *control_; }
  // The other ranks: for the library's own sources, as its header is not installed.
  const RankGroup& ranks() const { return *ranks_; }
  RankGroup& ranks() { return *ranks_; }
  // The providers, and what became of one that has failed.
  ProviderFallback& fallback() { return *fallback_; }
  const ProviderFallback& fallback() const { return *fallback_; }

 private:
  explicit TrainingSession(TrainingOptions options);
  Status Prepare(Model model);
  // Takes other ranks, or none; Join comes next.
  Status ReplaceRanks(std::shared_ptr<Communicator> communicator);

  const TrainingOptions options_;
  const std::unique_ptr<RunControl> control_ = std::make_unique<RunControl>();
  const std::unique_ptr<TrainingProgress> progress_ = std::make_unique<TrainingProgress>();
  std::shared_ptr<ProviderFallback> fallback_;
  std::unique_ptr<SessionParameters> parameters_;
  std::unique_ptr<RankGroup> ranks_;
  std::unique_ptr<StepRuns> runs_;
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_TRAINING_SESSION_H_
