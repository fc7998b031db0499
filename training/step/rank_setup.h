// SPDX-License-Identifier: Apache-2.0
// RankSetup: the facts about other ranks that a step program is built by. It is derived from a
// session's options and its communicator (SetUpRanks, training/session/rank_group.h).
#ifndef CAESURA_TRAINING_STEP_RANK_SETUP_H_
#define CAESURA_TRAINING_STEP_RANK_SETUP_H_

#include <cstdint>
#include <string>

namespace caesura {

// Facts that are the same on all ranks, but for the name of the provider. The default: one rank, by
// itself.
struct RankSetup {
  int ranks = 1;
  // The provider on whose device gradients are summed over the ranks (Communicator::device()).
  std::string provider = {};
  // A bucket of gradients is closed at this many bytes (gradient_reduction.h).
  int64_t bucket_bytes = int64_t{4} << 20;
  // Each rank keeps the optimizer state of only its part of each bucket.
  bool divides_state = false;
  // With divides_state: each micro-step sums its gradients over the ranks, and each rank
  // accumulates its parts only.
  bool divides_sums = false;
  // Running statistics are those of rank 0 after each step; otherwise each rank's own.
  bool broadcasts_buffers = true;
  // The micro-batches of an update on all ranks together, whose gradients are summed in an order
  // that is the same at any number of ranks. 0: any order.
  int logical_shards = 0;

  bool has_others() const { return ranks > 1; }
  bool is_ordered() const { return logical_shards > 0; }
  // This rank's micro-steps to an update, if one rank would do so many; 0: the caller decides.
  int MicroSteps(int accumulation_steps) const {
    return is_ordered() ? logical_shards / ranks : accumulation_steps;
  }
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_STEP_RANK_SETUP_H_
