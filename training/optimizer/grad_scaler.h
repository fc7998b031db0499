// SPDX-License-Identifier: Apache-2.0
// Dynamic loss scaling for half precision, with torch.amp.GradScaler's rules: the loss is
// multiplied by scale() so that small gradients do not vanish, and gradients by 1 / scale(); a step
// whose gradients are not finite is skipped and lowers the scale, a long run of good ones raises
// it.
#ifndef CAESURA_TRAINING_OPTIMIZER_GRAD_SCALER_H_
#define CAESURA_TRAINING_OPTIMIZER_GRAD_SCALER_H_

#include <cstdint>

#include "core/base/status.h"

namespace caesura {

// The rules by which the loss scale moves; the defaults are PyTorch's.
struct GradScalerOptions {
  float initial_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // good steps in a row

  // growth_factor > 1, 0 < backoff_factor < 1, a positive scale and interval.
  Status Check() const;
};

// The current loss scale, and its rule after each update. Thread safety: one thread at a time.
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {})
      : options_(options), scale_(options.initial_scale) {}

  const GradScalerOptions& options() const { return options_; }
  float scale() const { return scale_; }
  // Good steps since the scale changed last.
  int64_t good_steps() const { return good_steps_; }

  // After each update: were all gradients finite? If not, the update must not have happened.
  void Update(bool gradients_finite);
  // From a checkpoint.
  void Restore(float scale, int64_t good_steps) {
    scale_ = scale;
    good_steps_ = good_steps;
  }

 private:
  GradScalerOptions options_;
  float scale_;
  int64_t good_steps_ = 0;
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_OPTIMIZER_GRAD_SCALER_H_
