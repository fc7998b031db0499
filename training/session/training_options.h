// SPDX-License-Identifier: Apache-2.0
// TrainingOptions: the options of a training session.
#ifndef CAESURA_TRAINING_SESSION_TRAINING_OPTIONS_H_
#define CAESURA_TRAINING_SESSION_TRAINING_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <variant>
#include <vector>

#include "core/base/status.h"
#include "core/custom_ops/custom_op.h"
#include "core/providers/execution_provider.h"
#include "training/optimizer/optimizer.h"
#include "training/step/step_options.h"

namespace caesura {

class Communicator;  // core/distributed/communicator.h

// The answer of a session to one step that fails.
enum class OnFailure : uint8_t {
  kStop,   // Step returns the error
  kSkip,   // the batch is left out: Step returns NaN
  kRetry,  // the step is done again, with the same random numbers
  // The step is done again on the session's default providers, where it stays
  // (provider_fallback.h). A failure of a provider has this answer without a policy.
  kRetryOnDefaults,
  // The step is done again as micro-steps on parts of the batch, whose mean gradient makes the
  // update: with a loss that is a mean over the batch the same gradient up to the rounding of its
  // sum. Batch statistics and random numbers are those of the parts.
  kRetryInParts,
};

// Whatever the answer, a step that has failed leaves everything as it was, and a step that has left
// parameters inconsistent stops. Steps that were cancelled or suspended, and feeds that do not fit
// the model, have not failed.
struct FailurePolicy {
  OnFailure action = OnFailure::kStop;
  int retries = 1;  // of one step; after the last one it stops
  // kRetryInParts: how many; inputs whose first dimension is no constant are split along it into
  // equal parts. The session holds a sum of gradients for each parameter from its creation on.
  int parts = 2;

  Status Check() const;
};

// The failures of a session's steps since it was made.
struct FailureCounts {
  int64_t failed = 0;   // runs that failed, retries among them
  int64_t skipped = 0;  // batches left out
  int64_t retried = 0;  // retries
  int64_t saved = 0;    // steps that a retry has done
  std::string last;     // the last failure as text
};

// The options of a session that trains with others. As they are made: by itself.
struct RankOptions {
  // The ranks that train together; null: this process trains by itself. Each rank is given its own
  // part of a batch: an update goes by the mean gradient of all ranks, which have the same
  // parameters from Create on (those of rank 0). Random ops draw other numbers on each rank.
  std::shared_ptr<Communicator> communicator = nullptr;
  // A rank waits for the others of a step so long; then it fails with kRankFailure. Nothing: the
  // communicator's own time-out.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  // False: the caller has the parameters of rank 0 taken, and other ranks may not make this
  // session. Steps then compare what the caller compares (RankGroup::set_callers_facts) in place of
  // the model and the options.
  bool join = true;
  // Running statistics (batch norm) are those of rank 0 after each step. False: each rank keeps its
  // own, from its own batches.
  bool broadcast_buffers = true;
  // Gradients are summed over the ranks in buckets that are closed at this many bytes (1 or more,
  // the same on all ranks), each while the backward goes on.
  int64_t bucket_bytes = int64_t{4} << 20;
  // The way in which several ranks keep optimizer state (docs/guides/step_ranks.md). 0: all of it
  // on each. 1: each has the state of its own part of every bucket only, updates that part of the
  // parameters, and gives it to the others. Losses and parameters are those of 0.
  // 2: with accumulation each also accumulates its own parts of the gradients only, which all
  // micro-steps exchange.
  int shard = 0;
  // Ordered sums (docs/guides/step_ranks.md): the batch of an update is divided into so many
  // logical shards, each of them the feeds of one Step. Rank r of N takes the shards
  // [r, r + 1) * logical_shards / N, one after the other; the last one updates. Losses of updates,
  // parameters and random numbers then have the same bits at any N, for the same number of threads
  // and feeds of the same shapes. logical_shards / N is a whole number, and a power of two where
  // N > 1; accumulation_steps stays 1. 0: sums have any order.
  int logical_shards = 0;
};

// Bytes that a rank keeps between its steps, and the most that it needs for the gradients of one.
struct RankMemory {
  size_t parameters = 0;  // and running statistics
  size_t gradients = 0;   // with the buckets under way, and accumulated ones
  size_t optimizer_state = 0;
  size_t total() const { return parameters + gradients + optimizer_state; }
};

// Bytes that a step with feeds of some size takes.
struct StepMemory {
  RankMemory kept;   // its gradients lie in the arena, except sums over micro-steps
  size_t arena = 0;  // activations, gradients and workspaces
  size_t peak = 0;   // the arena, and all beside it: the model, optimizer state, feeds, results
};

// The options of a TrainingSession: the step, its schedule, its providers and the answers to
// failures. Create copies them; a change afterwards has no effect.
struct TrainingOptions {
  StepOptions step;
  LrSchedule schedule;     // times the optimizer's learning rate
  ProviderList providers;  // empty: the CPU provider
  bool fallback = true;    // whether a failing provider is replaced; see TrainingSession::fallback
  FailurePolicy failures = {};
  // Each step keeps what it overwrites until it has ended: then any step that fails, or is given
  // up, has changed nothing. Costs memory for a copy of the parameters and optimizer state, and the
  // time to write it. CommitMode::kLate needs it only for steps that are given up among their
  // updates.
  bool undo = false;
  int threads = 0;    // per kernel; 0: CAESURA_NUM_THREADS, or what OpenMP would take
  uint64_t seed = 0;  // of dropout and other random ops
  // Bytes that a step's arena may take (TrainingSession::StepBytes tells what it takes); 0: no
  // limit. What does not fit is computed again in the backward; a step whose least is above the
  // budget fails, saying so.
  size_t memory_budget = 0;
  // The model's initializers are trained where they are: steps write to them, and their owner may
  // write to them between calls. Without it the session trains copies.
  // Without it, and with a device's provider that has kernels for their updates, parameters and
  // optimizer state live in the device's memory (parameter_placement.h).
  bool share_parameters = false;
  // Names of inputs that will be fed on the device of the first provider; others come on the host.
  // Ops on integers among them stay on the device (graph_transforms/shapes/cpu_fallback.h).
  std::unordered_set<std::string> device_inputs = {};
  std::vector<std::string> disabled_passes;
  CustomOps custom_ops;
  RankOptions ranks;  // by itself, if nothing is said
};

// The value of an option by name. Which of these it is, is the option's type.
using OptionValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;

// Sets an option by its name in Python: SetOption("clip_norm", 1.0, &options). kNotFound for a name
// that is none; kInvalidArgument for a value of another type, naming both types, and for one that
// is out of range or that no choice is named by.
Status SetOption(const std::string& name, const OptionValue& value, TrainingOptions* options);
// Fails as the first conflict that these options have says, with a sentence that names both options
// as `spell` spells them; null: by their names.
Status CheckConflicts(const TrainingOptions& options, bool among_ranks,
                      const std::function<std::string(const std::string&)>& spell = nullptr);

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_TRAINING_OPTIONS_H_
