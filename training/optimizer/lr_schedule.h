// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules as pure functions of the step: nothing to save but the step itself.
//
//   LrSchedule schedule{.decay = CosineDecay{.steps = 9500}, .warmup_steps = 500};
//   double rate = 3e-4 * schedule.Factor(updates_done);
#ifndef CAESURA_TRAINING_OPTIMIZER_LR_SCHEDULE_H_
#define CAESURA_TRAINING_OPTIMIZER_LR_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <variant>

#include "core/base/status.h"

namespace caesura {

// In all of them t counts updates from 0, and `end` is the last value as a part of the base
// learning rate. Beyond `steps` the last value stays.

// 1
struct ConstantDecay {};

// end + (1 - end) (1 - t / steps)^power: torch's PolynomialLR (end 0), transformers' linear (power
// 1) and polynomial.
struct PolynomialDecay {
  int64_t steps = 0;
  double end = 0;
  double power = 1;
};

// end + (1 - end) (1 + cos(pi t / steps)) / 2: torch's CosineAnnealingLR, transformers' cosine.
struct CosineDecay {
  int64_t steps = 0;
  double end = 0;
};

// gamma^floor(t / every): torch's StepLR.
struct StepDecay {
  int64_t every = 0;
  double gamma = 0.1;
};

// Any decay. Each one gives a factor of the base learning rate.
using LrDecay = std::variant<ConstantDecay, PolynomialDecay, CosineDecay, StepDecay>;

// A linear warm-up, then a decay that counts from the warm-up's end (torch's SequentialLR).
struct LrSchedule {
  LrDecay decay = {};
  int64_t warmup_steps = 0;
  // The start of the warm-up: 0 in transformers (the first update then has rate 0), 1/3 in torch's
  // LinearLR.
  double warmup_start = 0;

  // The factor of the base learning rate in the update that follows `updates_done`
  // others.
  double Factor(int64_t updates_done) const;
  // Fails when a length is not positive or a coefficient is not finite.
  Status Check() const;
};

// "constant", "linear", "cosine", "polynomial" (power 2) or "step" (a tenth after each third),
// ending with update `total_steps`, the warm-up included.
Result<LrSchedule> NamedSchedule(const std::string& name, int64_t total_steps,
                                 int64_t warmup_steps = 0);

}  // namespace caesura

#endif  // CAESURA_TRAINING_OPTIMIZER_LR_SCHEDULE_H_
