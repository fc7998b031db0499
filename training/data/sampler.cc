// SPDX-License-Identifier: Apache-2.0
#include "training/data/dataset.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

namespace caesura {

Result<Sampler> Sampler::Create(const SamplerOptions& options) {
  if (options.batch_size < 1 || options.size < (options.drop_last ? options.batch_size : 1)) {
    return InvalidArgument(std::to_string(options.size) + " examples make no batch of " +
                           std::to_string(options.batch_size));
  }
  Sampler sampler(options);
  const int64_t rest = options.drop_last ? 0 : options.batch_size - 1;
  sampler.batches_per_epoch_ = (options.size + rest) / options.batch_size;
  return sampler;
}

std::span<const int64_t> Sampler::Batch(int64_t n) {
  OrderEpoch(n / batches_per_epoch_);
  const int64_t begin = n % batches_per_epoch_ * options_.batch_size;
  const int64_t end = std::min(begin + options_.batch_size, options_.size);
  return std::span<const int64_t>(order_).subspan(static_cast<size_t>(begin),
                                                  static_cast<size_t>(end - begin));
}

// Fisher and Yates's shuffle, with nothing in it that differs between standard libraries.
void Sampler::OrderEpoch(int64_t epoch) {
  if (epoch == epoch_ || (epoch_ >= 0 && !options_.shuffle)) return;
  epoch_ = epoch;
  order_.resize(static_cast<size_t>(options_.size));
  std::iota(order_.begin(), order_.end(), 0);
  if (!options_.shuffle) return;
  const auto high = [](uint64_t word) { return static_cast<uint32_t>(word >> 32); };
  const auto counter = static_cast<uint64_t>(epoch);
  std::seed_seq seeds{static_cast<uint32_t>(options_.seed), high(options_.seed),
                      static_cast<uint32_t>(counter), high(counter)};
  std::mt19937_64 random(seeds);
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random() % i]);
}

}  // namespace caesura
