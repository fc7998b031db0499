// SPDX-License-Identifier: Apache-2.0
// The kill sweep and its children agree on these.
#ifndef CAESURA_TESTS_TRAINING_KILL_SWEEP_H_
#define CAESURA_TESTS_TRAINING_KILL_SWEEP_H_

#include <cstdlib>
#include <map>
#include <string>

#include "tests/training/real_step.h"

namespace caesura::testing {

inline constexpr int kUpdatesAfterTheKill = 3;  // the one that was killed among them
inline constexpr int kHundredSteps = 100;

inline RealModel KilledModel(const std::string& name) {
  const std::map<std::string, RealModel (*)()> models = {{"mlp", Mlp},
                                                         {"digits", Digits},
                                                         {"dropout", DigitsWithDropout},
                                                         {"chargpt", CharGpt},
                                                         {"llama", Llama}};
  RealModel real = models.at(name)();
  while (real.batches.size() < kUpdatesAfterTheKill) real.batches.push_back(real.batches.front());
  return real;
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_TRAINING_KILL_SWEEP_H_
