// SPDX-License-Identifier: Apache-2.0
// The source of batches: examples by index, from arrays or from a text. A Sampler gives
// their order.
#ifndef CAESURA_TRAINING_DATA_DATASET_H_
#define CAESURA_TRAINING_DATA_DATASET_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/tensor/tensor.h"

namespace caesura {

// Immutable. Thread safety: all methods from any thread.
class Dataset {
 public:
  virtual ~Dataset() = default;
  // The number of examples.
  virtual int64_t size() const = 0;
  // The examples of these indices, stacked along axis 0, by name. Fails with kInvalidArgument for
  // an index outside.
  virtual Result<std::map<std::string, Tensor>> Batch(std::span<const int64_t> indices) const = 0;
};

// Arrays of one length along axis 0, which counts the examples. Fails with kInvalidArgument, naming
// the arrays, when their lengths differ or one is a scalar. REQUIRES: host memory.
Result<std::shared_ptr<const Dataset>> MakeArrayDataset(std::map<std::string, Tensor> arrays);

// A text as numbers. Characters are bytes; the vocabulary is those that occur, in order of their
// codes.
class TextCorpus {
 public:
  explicit TextCorpus(const std::string& text);
  const std::string& vocabulary() const { return vocabulary_; }
  const std::vector<uint8_t>& tokens() const { return tokens_; }
  // The number of each character. Fails with kInvalidArgument for a character that the vocabulary
  // lacks.
  Result<std::vector<int64_t>> Encode(const std::string& text) const;
  // REQUIRES: numbers in [0, vocabulary().size())
  std::string Decode(std::span<const int64_t> numbers) const;

 private:
  std::string vocabulary_;
  std::vector<uint8_t> tokens_;
  int number_of_[256];  // by byte; -1: not in the vocabulary
};

// Selects the windows that MakeTextDataset cuts from a text. Lengths are in characters.
struct TextWindows {
  int64_t length = 128;  // characters that the model sees at once
  int64_t stride = 0;    // between the beginnings of two windows; 0: length
  std::string input_name = "input";
  std::string target_name = "target";  // the input moved on by one character
  // The part of the text that is taken, as fractions of it.
  double begin = 0, end = 1;
};

// Examples are windows of the text: `input_name` and `target_name`, int64[length] each. Fails with
// kInvalidArgument when the part is shorter than one window and the character after it.
Result<std::shared_ptr<const Dataset>> MakeTextDataset(std::shared_ptr<const TextCorpus> corpus,
                                                       const TextWindows& windows);

// The examples of these indices of another dataset, in this order. Fails with kInvalidArgument for
// an index outside.
Result<std::shared_ptr<const Dataset>> Subset(std::shared_ptr<const Dataset> dataset,
                                              std::vector<int64_t> indices);

// The order and size of batches. Equal options give equal batches on every machine.
struct SamplerOptions {
  int64_t size = 0;  // of the dataset
  int64_t batch_size = 1;
  bool shuffle = true;  // anew in every epoch
  bool drop_last =
      true;  // leave out examples that do not fill a batch; off: the last batch is smaller
  uint64_t seed = 0;
};

// Chooses the examples of each batch of a dataset. Batch n depends on the options and on n only, so
// a run goes on exactly where it was from nothing but its step, also in the middle of an epoch.
// Thread safety: one thread at a time.
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

#endif  // CAESURA_TRAINING_DATA_DATASET_H_
