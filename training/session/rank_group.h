// SPDX-License-Identifier: Apache-2.0
// RankGroup: the ranks that train a session's parameters together, as one of them has them.
#ifndef CAESURA_TRAINING_SESSION_RANK_GROUP_H_
#define CAESURA_TRAINING_SESSION_RANK_GROUP_H_

#include <memory>
#include <string>
#include <vector>

#include "core/distributed/communicator.h"
#include "core/runtime/program.h"
#include "training/session/run_control.h"
#include "training/session/session_parameters.h"
#include "training/session/training_options.h"
#include "training/session/training_progress.h"
#include "training/step/rank_setup.h"

namespace caesura {

class RunCollectives;  // core/distributed/run_collectives.h

// The setup of a session with these ranks (null: none), whatever options.ranks.communicator is.
// Fails naming the option that does not go with the others, with the number of ranks or with the
// communicator's device.
Result<RankSetup> SetUpRanks(const TrainingOptions& options, const Communicator* communicator,
                             const ProviderList& providers);

// The parameters that rank 0 and this one have, and how far they are, move together from Join on.
// With no other ranks only setup, communicator, rank and Memory may be called, and Replace. Thread
// safety: one thread at a time.
class RankGroup {
 public:
  // References are to parts of the session, which outlive this. `setup`: that of SetUpRanks.
  RankGroup(const TrainingOptions& options, RankSetup setup, RunControl& control,
            SessionParameters& parameters, TrainingProgress& progress,
            std::shared_ptr<const ProviderFallback> providers);

  const RankSetup& setup() const { return setup_; }
  const Communicator* communicator() const { return communicator_.get(); }
  int rank() const { return setup_.has_others() ? communicator()->rank() : 0; }
  // The memory that this rank keeps is known before the first step. Activations are not among it.
  RankMemory Memory() const;

  // All ranks call it. Refuses ranks with other programs (kInvalidArgument, on all of them), then
  // takes the parameters, state and position of the rank that has done the most updates.
  // `update`: the program of a step that updates.
  Status Join(const Graph& update);
  // Takes other ranks, or none, in place of those before; Join comes next. Fails, with the group as
  // it was, where this rank has parts of parameters, state or sums that others then would lack.
  Status Replace(std::shared_ptr<Communicator> communicator);

  // Gives a run of a step what it needs among the ranks. Fails, before anything has run, with
  // kSuspended where a rank was asked to suspend.
  Status BeginStep(RunOptions& run);
  // Has the run's part in what all ranks know: that one was asked to suspend, the losses of this
  // update. Ends the communicator where a failed run leaves the other ranks waiting; marks the
  // parameters as lost where others have done the step.
  void EndStep(const RunResult& result);

  // Writes the checkpoint, of what is whole on each rank, to a file that any number of ranks reads.
  // If state is divided, all ranks call it: rank 0 gets all parts and writes the file, and all
  // learn whether it is there. Fails with kUnsupported where ranks have parts that it would lack.
  Status Save(Checkpoint checkpoint, const std::string& path) const;
  // Lists what the checkpoint lacks for this rank's parts of state, a line each. `mid_update`: it
  // has sums of gradients.
  std::string Misfits(const Checkpoint& from, bool mid_update) const;
  // Takes this rank's parts. REQUIRES: no misfits.
  void Restore(const Checkpoint& from);

 private:
  Clock::time_point Deadline() const {
    return Clock::now() + options_.ranks.timeout.value_or(communicator_->timeout());
  }
  // A hash of all that ranks must have in common: the model's ops, the buckets, the update. Sizes
  // of feeds may differ.
  uint64_t Fingerprint(const Graph& update) const;
  Status TakeParameters(int root);
  // True for a parameter of StepOptions::rank_parts and for its state.
  bool IsRankPart(int parameter) const;
  // The tensor itself or a copy, in memory that the communicator exchanges.
  Result<Tensor> OnExchangedDevice(const Tensor& tensor) const;
  bool is_divided() const { return !parameters_.shards().empty(); }
  // True if sums of gradients are divided, too.
  bool has_divided_sums() const;
  // Adds the state of all ranks to the checkpoint of rank 0, and writes its file there.
  Status SaveParts(Checkpoint checkpoint, const std::string& path) const;
  // Fails where a rank lacks its part of the state of the same update. Both by rank.
  Status CheckParts(const std::vector<int64_t>& updates,
                    const std::vector<int64_t>& state_ranks) const;

  const TrainingOptions& options_;
  std::shared_ptr<Communicator> communicator_;  // null: there are no other ranks
  RankSetup setup_;
  RunControl& control_;
  SessionParameters& parameters_;
  TrainingProgress& progress_;
  const std::shared_ptr<const ProviderFallback> providers_;
  int state_rank_ = -1;                          // the one whose parts of state these are
  std::shared_ptr<RunCollectives> collectives_;  // of the step that runs
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_RANK_GROUP_H_
