// SPDX-License-Identifier: Apache-2.0
// RankGroup: the ranks that train a session's parameters together, as one of them has them.
#ifndef CAESURA_TRAINING_SESSION_RANK_GROUP_H_
#define CAESURA_TRAINING_SESSION_RANK_GROUP_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/distributed/communicator.h"
#include "core/distributed/rank_facts.h"
#include "core/distributed/run_collectives.h"
#include "core/runtime/program.h"
#include "training/session/run_control.h"
#include "training/session/session_parameters.h"
#include "training/session/training_options.h"
#include "training/session/training_progress.h"
#include "training/step/rank_setup.h"

namespace caesura {

struct StepProgram;  // training/step/step_program.h

// The words of the meeting of ranks (Communicator::Meet) that each update has: those that must be
// alike, then a bit for each row of parameters that the rank uses (StepOptions::skips_unused), then
// those of the agreement. The first one is 0; a caller that meets with others in its place has
// something else to say.
inline constexpr size_t kAlikeWords = 7, kUseWords = 4;
inline constexpr size_t kComparedWords = kAlikeWords + kUseWords + RunCollectives::kAgreedWords;
// The first word of a session that saves, or whose step has failed before its exchange.
inline constexpr int64_t kSaves = 2, kFailed = 3;
// So many rows may a step have that leaves unused ones as they are.
inline constexpr int64_t kMostRows = kUseWords * 64;

// The setup of a session with these ranks (null: none), whatever options.ranks.communicator is.
// Fails naming the option that does not go with the others, with the number of ranks or with the
// communicator's device.
Result<RankSetup> SetUpRanks(const TrainingOptions& options, const Communicator* communicator,
                             const ProviderList& providers);

// Comes in place of RankGroup::Join where this rank cannot join: the others, who do, fail with its
// reason.
void RefuseToJoin(const RankOptions& options, Communicator* communicator, const Status& reason);

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

  // The step that ranks compare from here on, one that updates. Its parameters are in the set.
  void DescribeStep(const StepProgram& update);
  // A hash of the facts that the caller of a session without `join` compares with the other ranks'.
  void set_callers_facts(uint64_t hash) { callers_facts_ = hash; }
  // How often others than the session have written to its tensors since then, where the caller of
  // such a session knows.
  void set_writes(uint64_t count) { writes_ = count; }
  // The gradients of each bucket that a step exchanges, as StepProgram::buckets has them.
  const std::vector<std::vector<std::string>>& exchanged() const { return exchanged_; }
  // With StepOptions::skips_unused: the rows, as indices of StepOptions::groups, that this rank
  // uses in the next update, in its earlier micro-steps as well. REQUIRES: below kMostRows.
  void set_uses(const std::vector<int>& rows);
  // True if a rank has used the row in the last update.
  bool used(int row) const { return used_.empty() || used_[row]; }
  // True if the last step has failed as the ranks' steps differ. It has changed nothing, and the
  // communicator is of use.
  bool differs() const { return differs_; }
  // True if the last step has failed here before its first node, not for its feeds: of a
  // session without `join` the caller has to tell the other ranks, which wait.
  bool failed_alone() const { return failed_alone_; }
  // The facts of the last step, for a caller that tells what differs: `call` by its name, how the
  // ranks exchange gradients, the counts, and hashes of all values.
  RankFacts StepFacts(const std::string& call = "a step") const;

  // All ranks call it. Refuses ranks with other steps, and those beside one that cannot join
  // (RefuseToJoin), with kInvalidArgument on all of them. Then takes the parameters, frozen ones,
  // state and position of the rank that has done the most updates.
  Status Join();
  // Takes other ranks, or none, in place of those before; Join comes next. Fails, with the group as
  // it was, where this rank has parts of parameters, state or sums that others then would lack.
  Status Replace(std::shared_ptr<Communicator> communicator);

  // Gives a run of a step what it needs among the ranks. One that updates is compared with the
  // other ranks' beside its forward: the step, the rates and coefficients that it goes by, counts,
  // and a part of all values, another one in each update. Fails, before anything has run, with
  // kSuspended where a rank was asked to suspend.
  Status BeginStep(RunOptions& run, bool is_update, std::span<const double> coefficients);
  // Has the run's part in what all ranks know: that one was asked to suspend, the losses of this
  // update, what differs among them. Ends the communicator where a failed run leaves the other
  // ranks waiting; marks the parameters as lost where others have done the step.
  void EndStep(RunResult& result);

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
  Status TakeParameters(int root);
  Status TakeFrozen(int root);
  // --- rank_facts.cc ---
  // The rates and coefficients of the next update.
  RankFacts Rates() const;
  // The number of micro-steps so far; where the caller decides when to update, that of this update.
  // Empty: ranks may have other numbers.
  std::string MicroSteps() const;
  // The words of all that a step exchanges, where it may be exchanged in one meeting at the end of
  // the backward; otherwise 0.
  int64_t LoadOf(const StepProgram& update) const;
  // A hash of a part of all values, the same part on all ranks.
  uint64_t HashOfSample() const;
  // True for an entry of the set that is the same on all ranks.
  bool IsShared(int i) const;
  // Tells all ranks what differs, if anything does; all call it. `what`: that differ.
  Status Refusal(const std::string& what, const RankFacts& own) const;
  // True for a parameter of StepOptions::rank_parts and for its state.
  bool IsRankPart(int parameter) const;
  // The tensor itself or a copy, in memory that the communicator exchanges.
  Result<Tensor> OnExchangedDevice(const Tensor& tensor) const;
  bool is_divided() const { return !parameters_.shards().empty(); }
  // True if sums of gradients are divided, too.
  bool has_divided_sums() const;
  // Fails where another rank does not call Save.
  Status MeetToSave() const;
  // Tells the others, who compare a step or meet to save, that this rank's has failed.
  void TellOthers(const Status& failure) const;
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
  RankFacts step_facts_;  // what DescribeStep was told
  std::vector<std::vector<std::string>> exchanged_;
  uint64_t step_hash_ = 0;  // of it
  int64_t load_ = 0;        // words of what such a step exchanges, where they are few
  uint64_t callers_facts_ = 0, writes_ = 0;
  bool is_update_ = true;                          // the step that runs updates
  std::vector<double> coefficients_;               // of the step that runs
  std::vector<std::pair<int, uint64_t>> sampled_;  // entries of the set, and hashes of their names
  bool differs_ = false, failed_alone_ = false;
  std::array<int64_t, kUseWords> uses_ = {};     // a bit for each row
  std::vector<bool> used_;                       // each row, in the last update by any rank
  int state_rank_ = -1;                          // the one whose parts of state these are
  std::shared_ptr<RunCollectives> collectives_;  // of the step that runs
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_RANK_GROUP_H_
