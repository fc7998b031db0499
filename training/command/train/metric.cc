// SPDX-License-Identifier: Apache-2.0
#include "training/command/train/metric.h"

#include <cmath>
#include <cstdio>
#include <vector>

namespace caesura::command {
namespace {

Status DoNotFit(const Tensor& prediction, const Tensor& target) {
  return InvalidArgument("a prediction of shape " + prediction.shape().ToString() +
                         " and a target of shape " + target.shape().ToString() + " do not fit");
}

}  // namespace

Result<Metric> Metric::Create(const std::string& name, const Loss& loss) {
  using LossKind = Loss::Kind;
  const bool classifies =
      loss.kind == LossKind::kCrossEntropy || loss.kind == LossKind::kBinaryCrossEntropyLogits;
  if (name == "none" || loss.kind == LossKind::kOutput) return Metric(Kind::kNone, loss);
  if (name == "accuracy" && !classifies)
    return InvalidArgument("accuracy needs a loss about classes");
  if (name == "mae" && classifies) return InvalidArgument("mae needs a loss about numbers");
  return Metric(classifies ? Kind::kAccuracy : Kind::kMeanAbsoluteError, loss);
}

Status Metric::Add(const Tensor& prediction, const Tensor& target) {
  if (kind_ == Kind::kNone) return {};
  return loss_.kind == Loss::Kind::kCrossEntropy ? AddClasses(prediction, target)
                                                 : AddElements(prediction, target);
}

// The class with the highest score against the one that is right.
Status Metric::AddClasses(const Tensor& scores, const Tensor& target) {
  const Shape& shape = scores.shape();
  const int axis = loss_.class_axis < 0 ? shape.rank() + loss_.class_axis : loss_.class_axis;
  if (axis < 0 || axis >= shape.rank()) return DoNotFit(scores, target);
  const int64_t outer = shape.Elements(0, axis), classes = shape[axis],
                inner = shape.Elements(axis + 1, shape.rank());
  if (target.elements() != outer * inner) return DoNotFit(scores, target);
  const std::vector<double> values = scores.ToVector<double>();
  const std::vector<int64_t> right = target.ToVector<int64_t>();
  for (int64_t i = 0; i < outer * inner; ++i) {
    if (right[i] == loss_.ignore_index) continue;
    const double* row = values.data() + i / inner * classes * inner + i % inner;
    int64_t best = 0;
    for (int64_t c = 1; c < classes; ++c) {
      if (row[c * inner] > row[best * inner]) best = c;
    }
    sum_ += best == right[i];
    ++count_;
  }
  return {};
}

Status Metric::AddElements(const Tensor& prediction, const Tensor& target) {
  if (prediction.shape() != target.shape()) return DoNotFit(prediction, target);
  const std::vector<double> values = prediction.ToVector<double>(),
                            right = target.ToVector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    sum_ += kind_ == Kind::kAccuracy ? (values[i] > 0) == (right[i] > 0.5)
                                     : std::abs(values[i] - right[i]);
    ++count_;
  }
  return {};
}

const char* Metric::Name() const {
  return kind_ == Kind::kAccuracy ? "accuracy" : kind_ == Kind::kMeanAbsoluteError ? "mae" : "none";
}

std::string Metric::Text() const {
  char text[48] = "";
  if (kind_ == Kind::kAccuracy)
    std::snprintf(text, sizeof(text), "%s %.1f%%", Name(), 100 * Mean());
  if (kind_ == Kind::kMeanAbsoluteError)
    std::snprintf(text, sizeof(text), "%s %.4g", Name(), Mean());
  return text;
}

}  // namespace caesura::command
