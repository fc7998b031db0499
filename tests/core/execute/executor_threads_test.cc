// SPDX-License-Identifier: Apache-2.0
// States of one plan in threads. Also run under ThreadSanitizer (tests/run.sh), so: one OpenMP
// thread a kernel.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "core/runtime/plan_cache.h"
#include "tests/core/execute/training_step.h"

namespace caesura::testing {
namespace {

constexpr int kThreads = 4;
constexpr int kRounds = 12;

template <typename Fn>
void InThreads(const Fn& fn) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(fn, t);
  for (std::thread& thread : threads) thread.join();
}

TEST(ExecutorThreads, FourStatesOfOnePlan) {
  TrainingStep step;
  auto allocator = MakePooledAllocator(HostAllocator());
  auto plan = step.Plan({std::make_shared<TinyProvider>(allocator.get())});
  const StepResults expected = Uncut(step, plan);
  std::atomic<int> right{0};
  InThreads([&](int t) {
    ExecutionState state(plan);
    for (int round = 0; round < kRounds; ++round) {
      auto run = [&](ExecutionState& s) { return RunInPieces(s, t + 1); };
      auto results = RunStep(step, state, run);
      if (results.ok() && *results == expected) ++right;
    }
  });
  EXPECT_EQ(right, kThreads * kRounds);
}

TEST(ExecutorThreads, OneStateHandedFromThreadToThread) {
  TrainingStep step;
  auto plan = step.Plan();
  const StepResults expected = Uncut(step, plan);
  ExecutionState state(plan);
  auto run = [](ExecutionState& s) {
    Result<RunOutcome> outcome = RunOutcome::kStopped;
    while (outcome.ok() && *outcome == RunOutcome::kStopped) {
      std::thread([&] { outcome = PartialExecutor::Run(s, s.program_counter() + 2); }).join();
    }
    return outcome;
  };
  auto results = RunStep(step, state, run);
  ASSERT_TRUE(results.ok());
  EXPECT_TRUE(*results == expected);
}

TEST(ExecutorThreads, ShareAValueCache) {
  auto graph = GraphOf(R"((float[1,2] x) => (float[1,2] y) <float[2,2] w = {1, 2, 3, 4}> {
    t = Transpose (w)
    y = MatMul (x, t)
  })");
  auto plan = PlanOf(graph, {Ramp(Shape{1, 2})}, {.parameters = {graph->FindValue("w")}});
  ParameterSet parameters;
  parameters.Add("w", Tensor::Of<float>(Shape{2, 2}, {1, 2, 3, 4}));
  ValueCache cache(plan->cache_entries());
  std::atomic<int> right{0};
  InThreads([&](int) {
    ExecutionState state(plan);
    for (int round = 0; round < kRounds; ++round) {
      RunOptions options;
      options.parameters = &parameters;
      options.cache = &cache;
      auto results = Finish(state, {Floats(Shape{1, 2}, {1, 10})}, options);
      if (results.ok() && ToFloats((*results)[0]) == std::vector<float>{21, 43}) ++right;
    }
  });
  EXPECT_EQ(right, kThreads * kRounds);
  EXPECT_EQ(cache.hits() + cache.misses(), static_cast<uint64_t>(kThreads * kRounds));
  EXPECT_GE(cache.hits(), static_cast<uint64_t>(kThreads * (kRounds - 1)));
}

TEST(ExecutorThreads, ClonesOfAKeptState) {
  TrainingStep step;
  auto plan = step.Plan();
  const StepResults expected = Uncut(step, plan);
  ExecutionState state(plan);
  ParameterSet parameters = step.Parameters();
  RunOptions options;
  options.parameters = &parameters;
  options.seed = 7;
  ASSERT_TRUE(state.Start(step.feeds, options).ok());
  ASSERT_EQ(PartialExecutor::Run(state, 3).value(), RunOutcome::kStopped);
  // Clones are made here and run there. All of them update `seen`: not with the same parameters.
  std::vector<std::unique_ptr<ExecutionState>> clones;
  for (int t = 0; t < kThreads; ++t) clones.push_back(state.Clone().value());
  std::atomic<int> right{0};
  InThreads([&](int t) {
    auto outcome = PartialExecutor::Run(*clones[t]);
    if (!outcome.ok() || *outcome != RunOutcome::kYielded) return;
    const Values yielded = clones[t]->TakeYielded();
    if (SameBits(yielded, expected.yielded)) ++right;
  });
  EXPECT_EQ(right, kThreads);
}

TEST(ExecutorThreads, BodiesOfOnePlan) {
  auto graph = GraphOf(R"((float[2] x, bool c) => (float[2] y) {
    a = Neg (x)
    y = If (c) <
      then_branch = t () => (float[2] p) { p = Add (a, x) },
      else_branch = e () => (float[2] q) { q = Sub (a, x) }
    >
  })");
  auto plan = PlanOf(graph, {Ramp(Shape{2}), Tensor::Scalar<bool>(true)});
  std::atomic<int> right{0};
  InThreads([&](int t) {
    ExecutionState state(plan);
    for (int round = 0; round < kRounds; ++round) {
      const bool then = (t + round) % 2 == 0;
      auto results = Finish(state, {Floats(Shape{2}, {1, 2}), Tensor::Scalar<bool>(then)});
      if (results.ok() && ToFloats((*results)[0]) ==
                              (then ? std::vector<float>{0, 0} : std::vector<float>{-2, -4})) {
        ++right;
      }
    }
  });
  EXPECT_EQ(right, kThreads * kRounds);
}

TEST(ExecutorThreads, PlansAreMadeInAnyThread) {
  auto graph = GraphOf("(float[N] x) => (float[N] y) { a = Neg (x) y = Mul (a, x) }");
  PlanCache cache(graph, Tiny(), {.threads = 1});
  std::atomic<int> right{0};
  InThreads([&](int t) {
    for (int round = 0; round < kRounds; ++round) {
      const Values feeds = {Ramp(Shape{1 + (t + round) % 6})};
      auto plan = cache.Get(feeds);
      if (!plan.ok()) continue;
      ExecutionState state(*plan);
      auto results = Finish(state, feeds);
      if (results.ok() && ToFloats((*results)[0])[0] == -0.0625f) ++right;
    }
  });
  EXPECT_EQ(right, kThreads * kRounds);
  EXPECT_EQ(cache.plans_made(), 6);
}

}  // namespace
}  // namespace caesura::testing
