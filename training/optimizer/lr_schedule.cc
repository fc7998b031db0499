// SPDX-License-Identifier: Apache-2.0
#include "training/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace caesura {
namespace {

double Progress(int64_t t, int64_t steps) {
  return steps <= 0 ? 1 : static_cast<double>(std::min(t, steps)) / static_cast<double>(steps);
}

double FactorOf(const ConstantDecay&, int64_t) { return 1; }
double FactorOf(const PolynomialDecay& d, int64_t t) {
  return d.end + (1 - d.end) * std::pow(1 - Progress(t, d.steps), d.power);
}
double FactorOf(const CosineDecay& d, int64_t t) {
  return d.end + (1 - d.end) * (1 + std::cos(std::numbers::pi * Progress(t, d.steps))) / 2;
}
double FactorOf(const StepDecay& d, int64_t t) {
  return d.every <= 0 ? 1 : std::pow(d.gamma, static_cast<double>(t / d.every));
}

bool IsValid(const ConstantDecay&) { return true; }
bool IsValid(const PolynomialDecay& d) {
  return d.steps > 0 && std::isfinite(d.end) && d.power > 0;
}
bool IsValid(const CosineDecay& d) { return d.steps > 0 && std::isfinite(d.end); }
bool IsValid(const StepDecay& d) { return d.every > 0 && std::isfinite(d.gamma); }

}  // namespace

double LrSchedule::Factor(int64_t updates_done) const {
  const int64_t t = std::max<int64_t>(0, updates_done);
  if (t < warmup_steps) return warmup_start + (1 - warmup_start) * Progress(t, warmup_steps);
  return std::visit(
      [&](const auto& d) { return FactorOf(d, t - std::max<int64_t>(0, warmup_steps)); }, decay);
}

Status LrSchedule::Check() const {
  if (warmup_steps < 0 || !std::isfinite(warmup_start))
    return InvalidArgument("the warm-up must be finite");
  const bool valid = std::visit([](const auto& d) { return IsValid(d); }, decay);
  return valid ? Status()
               : InvalidArgument("a schedule needs a positive length and finite coefficients");
}

Result<LrSchedule> NamedSchedule(const std::string& name, int64_t total_steps,
                                 int64_t warmup_steps) {
  const int64_t steps = total_steps - warmup_steps;
  LrSchedule schedule{.warmup_steps = warmup_steps};
  if (name == "linear") schedule.decay = PolynomialDecay{.steps = steps};
  else if (name == "polynomial") schedule.decay = PolynomialDecay{.steps = steps, .power = 2};
  else if (name == "cosine") schedule.decay = CosineDecay{.steps = steps};
  else if (name == "step")
    schedule.decay = StepDecay{.every = std::max<int64_t>(1, (steps + 2) / 3)};
  else if (name != "constant") {
    return InvalidArgument("no schedule '" + name +
                           "': expected constant, linear, cosine, polynomial or step");
  }
  if (warmup_steps < 0 || (name != "constant" && steps <= 0)) {
    return InvalidArgument("a warm-up of " + std::to_string(warmup_steps) +
                           " steps does not fit into " + std::to_string(total_steps));
  }
  return schedule;
}

}  // namespace caesura
