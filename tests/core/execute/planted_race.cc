// SPDX-License-Identifier: Apache-2.0
// Breaks a contract on purpose: two runs at the same time update one parameter. ThreadSanitizer must say so
// in the configuration in which it finds nothing in the tests.
#include <cstdio>
#include <thread>

#include "tests/core/execute/training_step.h"

int main() {
  using namespace caesura;
  using namespace caesura::testing;
  TrainingStep step;
  auto plan = step.Plan();
  // One parameter set for two runs: both update `seen` in place.
  ParameterSet parameters = step.Parameters();
  auto run = [&] {
    ExecutionState state(plan);
    RunOptions options;
    options.parameters = &parameters;
    if (!state.Start(step.feeds, options).ok() || !PartialExecutor::Run(state).ok()) return;
    if (state.Resume(step.gradients).ok()) static_cast<void>(PartialExecutor::Run(state));
  };
  std::thread other(run);
  run();
  other.join();
  std::puts("ran to the end");
  return 0;
}
