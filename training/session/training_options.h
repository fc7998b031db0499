// SPDX-License-Identifier: Apache-2.0
// TrainingOptions: the options of a training session.
#ifndef CAESURA_TRAINING_SESSION_TRAINING_OPTIONS_H_
#define CAESURA_TRAINING_SESSION_TRAINING_OPTIONS_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/custom_ops/custom_op.h"
#include "core/distributed/communicator.h"
#include "core/providers/execution_provider.h"
#include "training/optimizer/lr_schedule.h"
#include "training/session/failure_policy.h"
#include "training/step/step_program.h"

namespace caesura {

// The options of a session that trains with others. As they are made: by itself.
struct RankOptions {
  // The ranks that train together; null: this process trains by itself. Each rank is given its own
  // part of a batch: an update goes by the mean gradient of all ranks, which have the same
  // parameters from Create on (those of rank 0). Random ops draw other numbers on each rank.
  std::shared_ptr<Communicator> communicator = nullptr;
  // A rank waits for the others of a step so long; then it fails with kRankFailure. Nothing: the
  // communicator's own time-out.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  // False: the parameters are those of rank 0 already, and other ranks may not make this session.
  bool join = true;
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
  // Bytes that a step's arena may take (StepPlan tells what it takes); 0: no limit. What does not
  // fit is computed again in the backward; a step whose least is above the budget fails, saying so.
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

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_TRAINING_OPTIONS_H_
