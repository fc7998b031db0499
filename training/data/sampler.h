// SPDX-License-Identifier: Apache-2.0
// Chooses the examples of each batch. Batch n depends on the options and on n only, so a run
// goes on exactly where it was from nothing but its step, also in the middle of an epoch.
#ifndef CAESURA_TRAINING_DATA_SAMPLER_H_
#define CAESURA_TRAINING_DATA_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"

namespace caesura {

// The order and size of batches. Equal options give equal batches on every machine.
struct SamplerOptions {
  int64_t size = 0;  // of the dataset
  int64_t batch_size = 1;
  bool shuffle = true;  // anew in every epoch
  bool drop_last =
      true;  // leave out examples that do not fill a batch; off: the last batch is smaller
  uint64_t seed = 0;
};

// The order of one dataset's examples. Thread safety: one thread at a time.
class Sampler {
 public:
  // Fails with kInvalidArgument when there would be no batch.
  static Result<Sampler> Create(const SamplerOptions& options);

  int64_t batches_per_epoch() const { return batches_per_epoch_; }
  // The indices in batch `n` >= 0, counted over all epochs; valid until the next call.
  std::span<const int64_t> Batch(int64_t n);

 private:
  explicit Sampler(const SamplerOptions& options) : options_(options) {}
  void OrderEpoch(int64_t epoch);

  SamplerOptions options_;
  int64_t batches_per_epoch_ = 0;
  int64_t epoch_ = -1;  // that `order_` is of
  std::vector<int64_t> order_;
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_DATA_SAMPLER_H_
