// SPDX-License-Identifier: Apache-2.0
// Stopped at every boundary, dead bytes poisoned, live ones moved, resumed on another thread, side
// by side with other states: the bits stay the same.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/core/execute/training_step.h"

namespace caesura::testing {
namespace {

constexpr uint8_t kPoisons[] = {0xff, 0x00, 0x7f, 0xa5};  // as floats: NaN, zero, large, small

// Runs to the next yield or the end, one step a call; between calls `cut(state)`.
template <typename Cut>
Result<RunOutcome> StepByStep(ExecutionState& state, const Cut& cut) {
  for (;;) {
    auto outcome = PartialExecutor::Run(state, state.program_counter() + 1);
    if (!outcome.ok() || *outcome != RunOutcome::kStopped) return outcome;
    Status status = cut(state);
    if (!status.ok()) return status;
  }
}

TEST(CutAnywhere, OnePlaceAtATime) {
  TrainingStep step;
  auto plan = step.Plan();
  const StepResults expected = Uncut(step, plan);
  const int steps = static_cast<int>(plan->steps().size());
  for (int at = 0; at <= steps; ++at) {
    for (uint8_t poison : kPoisons) {
      ExecutionState state(plan);
      auto run = [&](ExecutionState& s) -> Result<RunOutcome> {
        auto outcome = PartialExecutor::Run(s, at);
        if (!outcome.ok() || *outcome != RunOutcome::kStopped) return outcome;
        EXPECT_EQ(s.program_counter(), std::max(at, s.program_counter()));
        Status moved = s.Relocate(poison);
        return moved.ok() ? PartialExecutor::Run(s) : moved;
      };
      auto results = RunStep(step, state, run);
      ASSERT_TRUE(results.ok()) << results.status().ToString();
      EXPECT_TRUE(*results == expected) << "cut before step " << at << ", poison " << int{poison};
    }
  }
}

TEST(CutAnywhere, EverywhereAtOnce) {
  TrainingStep step;
  for (bool reuse : {true, false}) {
    auto plan = step.Plan(Tiny(), reuse);
    const StepResults expected = Uncut(step, plan);
    ExecutionState state(plan);
    for (uint8_t poison : kPoisons) {
      auto run = [&](ExecutionState& s) {
        return StepByStep(s, [&](ExecutionState& c) { return c.Relocate(poison); });
      };
      auto results = RunStep(step, state, run);  // the state is used again and again
      ASSERT_TRUE(results.ok()) << results.status().ToString();
      EXPECT_TRUE(*results == expected) << "poison " << int{poison};
    }
  }
}

TEST(CutAnywhere, EveryStepOnAnotherThread) {
  TrainingStep step;
  auto plan = step.Plan();
  const StepResults expected = Uncut(step, plan);
  ExecutionState state(plan);
  auto run = [](ExecutionState& s) {
    Result<RunOutcome> outcome = RunOutcome::kStopped;
    while (outcome.ok() && *outcome == RunOutcome::kStopped) {
      std::thread([&] {
        outcome = PartialExecutor::Run(s, s.program_counter() + 1);
        if (outcome.ok() && *outcome == RunOutcome::kStopped && !s.Relocate(0xff).ok())
          outcome = Internal("relocate");
      }).join();
    }
    return outcome;
  };
  auto results = RunStep(step, state, run);
  ASSERT_TRUE(results.ok());
  EXPECT_TRUE(*results == expected);
}

// Two states of one plan, one step of the one, one step of the other, at all distances from each
// other.
TEST(CutAnywhere, TwoStatesInterleaved) {
  TrainingStep step;
  auto plan = step.Plan();
  const StepResults expected = Uncut(step, plan);
  const int steps = static_cast<int>(plan->steps().size());
  for (int lead = 0; lead <= steps; ++lead) {
    ExecutionState first(plan), second(plan);
    ParameterSet parameters[2] = {step.Parameters(), step.Parameters()};
    StepResults results[2];
    ExecutionState* states[2] = {&first, &second};
    for (int i = 0; i < 2; ++i) {
      RunOptions options;
      options.parameters = &parameters[i];
      options.seed = 7;
      ASSERT_TRUE(states[i]->Start(step.feeds, options).ok());
    }
    auto advance = [&](int i) {
      ExecutionState& state = *states[i];
      if (state.stage() == ExecutionState::Stage::kYielded) {
        results[i].yielded = state.TakeYielded();
        EXPECT_TRUE(state.Resume(step.gradients).ok());
      } else if (state.stage() == ExecutionState::Stage::kReady) {
        EXPECT_TRUE(PartialExecutor::Run(state, state.program_counter() + 1).ok());
        if (state.stage() == ExecutionState::Stage::kFinished)
          results[i].fetches = state.TakeFetches();
      }
    };
    for (int i = 0; i < lead; ++i) advance(0);
    for (int i = 0; i < steps + 2; ++i) {
      advance(1);
      advance(0);
    }
    for (int i = 0; i < 2; ++i) {
      for (int p = 0; p < parameters[i].size(); ++p)
        results[i].parameters.push_back(parameters[i].tensor(p));
      EXPECT_TRUE(results[i] == expected) << "state " << i << ", lead " << lead;
    }
  }
}

TEST(CutAnywhere, RandomCutsOfRandomChains) {
  // Chains with branches: v_i = op(v_j, v_k) for random j, k < i; every third value is a graph
  // output.
  for (uint32_t seed = 0; seed < 25; ++seed) {
    std::mt19937 random(seed);
    std::string nodes, outputs;
    const char* ops[] = {"Add", "Sub", "Mul", "Neg", "Identity"};
    for (int i = 1; i < 30; ++i) {
      const std::string a = "v" + std::to_string(random() % i),
                        b = "v" + std::to_string(random() % i);
      const int op = static_cast<int>(random() % 5);
      nodes +=
          "  v" + std::to_string(i) + " = " + ops[op] + " (" + a + (op < 3 ? ", " + b : "") + ")\n";
      if (i % 3 == 0)
        outputs += (outputs.empty() ? "float[8] v" : ", float[8] v") + std::to_string(i);
    }
    auto graph = GraphOf("(float[8] v0) => (" + outputs + ") {\n" + nodes + "}");
    const Values feeds = {Ramp(Shape{8})};
    const Values expected = RunPlan(PlanOf(graph, feeds, {.reuse_memory = false}), feeds);
    auto plan = PlanOf(graph, feeds);
    EXPECT_TRUE(SameBits(RunPlan(plan, feeds), expected)) << seed;
    ExecutionState state(plan);
    ASSERT_TRUE(state.Start(feeds, {}).ok());
    auto cut = [&](ExecutionState& s) { return random() % 2 ? s.Relocate(0xff) : Status(); };
    ASSERT_TRUE(StepByStep(state, cut).ok());
    EXPECT_TRUE(SameBits(state.TakeFetches(), expected)) << seed << "\n" << plan->ToString();
  }
}

// The same chains with YieldOps after random nodes. The caller gives back what it got, from other
// memory, and then overwrites what it got.
TEST(CutAnywhere, YieldsBehindRandomNodes) {
  for (uint32_t seed = 0; seed < 25; ++seed) {
    std::string texts[2];
    for (bool yields : {false, true}) {
      std::mt19937 random(seed);
      std::string nodes;
      std::vector<std::string> names = {"v0"};  // what later nodes read
      const char* ops[] = {"Add", "Sub", "Mul", "Neg", "Identity"};
      for (int i = 1; i < 30; ++i) {
        const std::string v = "v" + std::to_string(i), a = names[random() % i],
                          b = names[random() % i];
        const int op = static_cast<int>(random() % 5);
        nodes += "  " + v + " = " + ops[op] + " (" + a + (op < 3 ? ", " + b : "") + ")\n";
        const bool cut = random() % 3 == 0 && yields;
        if (cut) nodes += "  y" + v + " = ai.caesura.YieldOp (" + v + ")\n";
        names.push_back(cut ? "y" + v : v);
      }
      nodes += "  out = Add (" + names[28] + ", " + names[29] + ")\n";
      texts[yields] = "(float[8] v0) => (float[8] out, float[8] v9) {\n" + nodes + "}";
    }
    const Values feeds = {Ramp(Shape{8})};
    const Values expected = RunPlan(PlanOf(GraphOf(texts[0]), feeds), feeds);
    auto plan = PlanOf(GraphOf(texts[1]), feeds);
    ExecutionState state(plan);
    ASSERT_TRUE(state.Start(feeds, {}).ok());
    while (PartialExecutor::Run(state).value() == RunOutcome::kYielded) {
      Values given, taken = state.TakeYielded();
      for (const RuntimeValue& value : taken) {
        given.push_back(value.tensor().Clone().value());
        std::memset(value.tensor().raw(), 0xff, value.tensor().bytes());
      }
      ASSERT_TRUE(state.Relocate(0xff).ok());
      ASSERT_TRUE(state.Resume(given).ok());
    }
    EXPECT_TRUE(SameBits(state.TakeFetches(), expected)) << seed << "\n" << plan->ToString();
  }
}

TEST(CutAnywhere, LateStepsAndDynamicValues) {
  auto graph = GraphOf(R"((float[6] x, int64[2] to) => (float[a,b] y, int64[1,n] at, float[1,n] q) {
    v = Neg (x)
    s = Reshape (v, to)
    d = ai.caesura.YieldOp (s)
    y = Mul (d, s)
    at = NonZero (x)
    f = Cast <to = 1> (at)
    q = Mul (f, f)
  })");
  const Values feeds = {Ramp(Shape{6}), Tensor::Of<int64_t>(Shape{2}, {2, 3})};
  auto plan = PlanOf(graph, feeds);
  auto run = [&](bool cut) {
    ExecutionState state(plan);
    EXPECT_TRUE(state.Start(feeds, {}).ok());
    auto relocate = [&](ExecutionState& s) { return cut ? s.Relocate(0xff) : Status(); };
    EXPECT_TRUE(StepByStep(state, relocate).ok());
    EXPECT_TRUE(relocate(state).ok());  // while it is suspended
    Values results = state.TakeYielded();
    EXPECT_TRUE(state.Resume({Ramp(Shape{2, 3}, 3.0f)}).ok());
    EXPECT_TRUE(relocate(state).ok());
    EXPECT_TRUE(StepByStep(state, relocate).ok());
    for (RuntimeValue& value : state.TakeFetches()) results.push_back(std::move(value));
    return results;
  };
  const Values expected = run(false);
  EXPECT_EQ(expected.size(), 4u);
  EXPECT_TRUE(SameBits(run(true), expected));
}

}  // namespace
}  // namespace caesura::testing
