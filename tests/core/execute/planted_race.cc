// SPDX-License-Identifier: Apache-2.0
// Breaks a contract on purpose: two runs at the same time update one parameter. ThreadSanitizer
// must say so in the configuration in which it finds nothing in the tests.
#include <atomic>
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
  // The allocator's lock orders runs that happen one after the other, so the runs start together,
  // and often.
  std::atomic<int> started{0};
  auto run = [&](int round) {
    ExecutionState state(plan);
    started.fetch_add(1, std::memory_order_relaxed);
    while (started.load(std::memory_order_relaxed) < 2 * (round + 1)) {}
    RunOptions options;
    options.parameters = &parameters;
    if (!state.Start(step.feeds, options).ok() || !PartialExecutor::Run(state).ok()) return;
    if (state.Resume(step.gradients).ok()) static_cast<void>(PartialExecutor::Run(state));
  };
  for (int round = 0; round < 300; ++round) {
    std::thread other(run, round);
    run(round);
    other.join();
  }
  std::puts("ran to the end");
  return 0;
}
