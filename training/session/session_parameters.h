// SPDX-License-Identifier: Apache-2.0
// SessionParameters: the tensors that a training session trains, and where they live.
//
//   Tensor weight = session->parameters().Get("fc.weight").value();
//   Status written = session->parameters().Set("fc.weight", pretrained);
#ifndef CAESURA_TRAINING_SESSION_SESSION_PARAMETERS_H_
#define CAESURA_TRAINING_SESSION_SESSION_PARAMETERS_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/providers/execution_provider.h"

namespace caesura {

struct Checkpoint;       // training/files/checkpoint.h
class ParameterSet;      // core/execute/parameter_set.h
struct ParameterShard;   // training/step/parameter_shard.h
class ProviderFallback;  // core/runtime/provider_fallback.h
struct StepProgram;      // training/step/step_program.h

// Trained parameters, running statistics, sums of gradients and optimizer state, which programs
// share; and the model that they belong to. It owns them, but for those that were bound. Thread
// safety: one thread at a time, and no run in flight.
class SessionParameters {
 public:
  // `trainable`: names of initializers of `model`. With `share` the model's own tensors are
  // trained; otherwise copies, which live on a device where one of the providers updates them there
  // (parameter_placement.h).
  SessionParameters(Model model, std::vector<std::string> trainable,
                    std::shared_ptr<const ProviderFallback> providers, bool share);
  ~SessionParameters();

  // Trained parameters, then running statistics, by the model's names.
  std::vector<std::string> Names() const;
  // The model's other floating initializers: frozen, or without a gradient.
  std::vector<std::string> FrozenNames() const;
  // A view that the next step changes, or a copy of what is on a device; for other initializers of
  // the model the value that the steps read. Optimizer state is there too
  // ("optimizer.exp_avg.NAME"). Fails with kNotFound, and with kUnsupported for state that is
  // divided among ranks.
  Result<Tensor> Get(const std::string& name) const;
  // Copies `value` (same dtype and shape) into the parameter, or into another initializer of the
  // model: then the programs are made again before the next run, since what followed from the old
  // value may be in them. Fails while a step waits.
  Status Set(const std::string& name, const Tensor& value);
  // Set of a frozen value, which from here on is the model's own: files do not keep it.
  Status SetOwn(const std::string& name, const Tensor& value);
  // From here on the parameter, statistic or optimizer state *is* `value` (same dtype and shape):
  // steps write to it, and its owner may write to it between calls. Models that were exported or
  // cloned before keep what they had. Where the parameters are on a device, all of them come to the
  // host. Fails while a step waits.
  Status Bind(const std::string& name, Tensor value);
  // The model with its trained parameters and statistics, as it came in but in evaluation mode.
  // With `outputs` (names of the model's outputs) it has these in this order, and neither nodes nor
  // inputs that only the others need.
  Result<Model> TrainedModel(const std::vector<std::string>& outputs = {}) const;
  // The parameters that a lost step, or a Restore that failed midway, has written to. Nothing: all
  // are whole.
  const std::optional<std::vector<std::string>>& lost() const { return lost_; }

  // --- for the programs and the files of the session ---
  // The buckets of parameters whose state is divided among the ranks; empty: it is whole.
  const std::vector<ParameterShard>& shards() const { return shards_; }
  // The model as it came, with the frozen values that were set; to be cloned.
  const Model& model() const { return model_; }
  // Grows when programs that were made before are out of date.
  int version() const { return version_; }
  // Gives the model and `graph`, a changed clone of it, copies of what is trained. Once, before the
  // first program.
  Status MakeCopies(Graph& graph);
  // Makes these the initializers of the program, whose names they are. The first program, one that
  // updates, says which there are.
  Status Share(const StepProgram& program);
  const ParameterSet& set() const { return *set_; }
  // For a run that may write to them.
  ParameterSet& ForRun();
  // Brings all tensors that are on a device to the host. All or none.
  Status BringToHost(const ProviderList& providers);
  // The set begins with so many trained parameters, and goes on with so many statistics.
  int trained() const { return trained_; }
  int statistics() const { return statistics_; }
  // Entries of the set that are whole on each rank; those after them are parts of state.
  int whole() const;
  // True for the sum of gradients of the micro-steps so far.
  bool IsAccumulator(int i) const;
  // While a step waits no parameter is set.
  void set_step_waits(bool waits) { step_waits_ = waits; }
  // Fails with kInvalidArgument while a step waits.
  Status CheckNoStepWaits() const;
  void set_lost(std::optional<std::vector<std::string>> names) { lost_ = std::move(names); }

  // Adds what is whole, and the frozen values that were set; sums of gradients with `has_sums`.
  Status Save(Checkpoint& to, bool has_sums) const;
  // Lists the tensors that the checkpoint lacks or has otherwise, a line each; empty: Restore may
  // be called.
  std::string Misfits(const Checkpoint& from, bool has_sums) const;
  // Copies the checkpoint's tensors. Frozen parameters take what it has for them, and the model's
  // own values where it has none. Where memory or a device fails, some have been written.
  // REQUIRES: no misfits.
  Status Restore(const Checkpoint& from, bool has_sums);

 private:
  Status CheckNotDivided(const std::string& name) const;
  // Its tensor in the checkpoint, or null.
  const Tensor* Find(const Checkpoint& from, int i) const;

  Model model_;
  const std::vector<std::string> trainable_;
  const std::shared_ptr<const ProviderFallback> providers_;
  const bool shared_;
  bool bound_;  // some are the caller's own
  bool step_waits_ = false;
  std::optional<std::vector<std::string>> lost_;
  int version_ = 0;
  // The model's own values of the frozen parameters that were set.
  std::map<std::string, Tensor> replaced_;
  const std::unique_ptr<ParameterSet> set_;
  int trained_ = 0, statistics_ = 0;
  std::vector<ParameterShard> shards_;
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_SESSION_PARAMETERS_H_
