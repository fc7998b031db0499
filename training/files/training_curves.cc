// SPDX-License-Identifier: Apache-2.0
#include "training/files/training_curves.h"

namespace caesura {

void TrainingCurves::Add(int64_t update, double loss, double learning_rate) {
  if (!points_.empty() && in_last_ < stride_) {
    Point& last = points_.back();
    ++in_last_;
    last.loss += (loss - last.loss) / static_cast<double>(in_last_);
    last.update = update;
    last.learning_rate = learning_rate;
    return;
  }
  if (points_.size() == kMaxPoints) {
    for (size_t i = 0; i < kMaxPoints / 2; ++i) {
      const Point &a = points_[2 * i], &b = points_[2 * i + 1];
      points_[i] = {b.update, (a.loss + b.loss) / 2, b.learning_rate};
    }
    points_.resize(kMaxPoints / 2);
    stride_ *= 2;
  }
  points_.push_back({update, loss, learning_rate});
  in_last_ = 1;
}

}  // namespace caesura
