// SPDX-License-Identifier: Apache-2.0
// The figure that validation reports besides the loss.
#ifndef CAESURA_TRAINING_COMMAND_TRAIN_METRIC_H_
#define CAESURA_TRAINING_COMMAND_TRAIN_METRIC_H_

#include <cstdint>
#include <string>

#include "core/tensor/tensor.h"
#include "training/step/loss.h"

namespace caesura::command {

// A mean over all examples, batch by batch.
class Metric {
 public:
  enum class Kind { kNone, kAccuracy, kMeanAbsoluteError };

  // `name`: "accuracy", "mae", "none", or "auto" for what fits the loss.
  static Result<Metric> Create(const std::string& name, const Loss& loss);

  Kind kind() const { return kind_; }
  // Fails with kInvalidArgument when the shapes of the two do not fit.
  Status Add(const Tensor& prediction, const Tensor& target);
  double Mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  void Reset() { sum_ = 0, count_ = 0; }
  // "accuracy", "mae", or "none".
  const char* Name() const;
  // "accuracy 97.2%", "mae 0.0123", or nothing.
  std::string Text() const;

 private:
  Metric(Kind kind, const Loss& loss) : kind_(kind), loss_(loss) {}
  Status AddClasses(const Tensor& scores, const Tensor& target);
  Status AddElements(const Tensor& prediction, const Tensor& target);

  Kind kind_;
  Loss loss_;
  double sum_ = 0;
  int64_t count_ = 0;
};

}  // namespace caesura::command

#endif  // CAESURA_TRAINING_COMMAND_TRAIN_METRIC_H_
