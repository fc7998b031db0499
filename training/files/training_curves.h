// SPDX-License-Identifier: Apache-2.0
// TrainingCurves: loss and learning rate over a training run, for reports.
#ifndef CAESURA_TRAINING_FILES_TRAINING_CURVES_H_
#define CAESURA_TRAINING_FILES_TRAINING_CURVES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace caesura {

// However long the run is, at most kMaxPoints points are kept: then neighbours become one, with
// their mean loss and the later one's rate. Thread safety: none.
class TrainingCurves {
 public:
  // The mean of one or more updates.
  struct Point {
    int64_t update = 0;  // the last one that it stands for
    double loss = 0, learning_rate = 0;
  };
  // One evaluation, after `update` updates.
  struct Validation {
    int64_t update = 0;
    double loss = 0;
    std::optional<double> metric;
  };
  static constexpr size_t kMaxPoints = 2048;

  TrainingCurves() { points_.reserve(kMaxPoints); }

  // Takes no memory and never fails: a step that has written to parameters may call it.
  void Add(int64_t update, double loss, double learning_rate);
  void AddValidation(Validation validation) { validations_.push_back(validation); }
  // Forgets all points; takes no memory and never fails.
  void Clear() {
    points_.clear();
    validations_.clear();
    stride_ = 1;
    in_last_ = 0;
  }
  void set_metric_name(std::string name) { metric_name_ = std::move(name); }

  const std::vector<Point>& points() const { return points_; }
  const std::vector<Validation>& validations() const { return validations_; }
  const std::string& metric_name() const {
    return metric_name_;
  }  // of Validation::metric; empty: none

 private:
  std::vector<Point> points_;
  std::vector<Validation> validations_;
  std::string metric_name_;
  int64_t stride_ = 1, in_last_ = 0;  // updates to a point, and how many of them the last point has
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_FILES_TRAINING_CURVES_H_
