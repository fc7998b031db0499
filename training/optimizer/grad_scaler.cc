// SPDX-License-Identifier: Apache-2.0
#include "training/optimizer/optimizer.h"

#include <cmath>

namespace caesura {

Status GradScalerOptions::Check() const {
  const bool valid = growth_factor > 1 && std::isfinite(growth_factor) && backoff_factor > 0 &&
                     backoff_factor < 1 && growth_interval > 0 && initial_scale > 0 &&
                     std::isfinite(initial_scale);
  return valid ? Status()
               : InvalidArgument(
                     "loss scaling needs growth > 1, backoff in (0, 1), scale and interval > 0");
}

void GradScaler::Update(bool gradients_finite) {
  if (!gradients_finite) {
    scale_ = static_cast<float>(scale_ * options_.backoff_factor);
    good_steps_ = 0;
    return;
  }
  if (++good_steps_ < options_.growth_interval) return;
  good_steps_ = 0;
  const float grown = static_cast<float>(scale_ * options_.growth_factor);
  if (std::isfinite(grown)) scale_ = grown;
}

}  // namespace caesura
