// SPDX-License-Identifier: Apache-2.0
// What a yield hands out and takes in, and whose memory it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/execute/training_step.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Runs up to the yield and gives what it handed out.
Values ToYield(ExecutionState& state, Values feeds, RunOptions options = {}) {
  EXPECT_TRUE(state.Start(std::move(feeds), std::move(options)).ok());
  auto outcome = PartialExecutor::Run(state);
  EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
  EXPECT_EQ(*outcome, RunOutcome::kYielded);
  return state.TakeYielded();
}
Values FromYield(ExecutionState& state, Values given) {
  Status resumed = state.Resume(std::move(given));
  EXPECT_TRUE(resumed.ok()) << resumed.ToString();
  auto outcome = PartialExecutor::Run(state);
  EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
  return state.TakeFetches();
}
void Overwrite(const Values& values) {
  for (const RuntimeValue& value : values)
    std::memset(value.tensor().raw(), 0xff, value.tensor().bytes());
}

// y = -x, read again by backward: dx = dy * y. z = -y is read by nobody else.
constexpr char kTwoValues[] = R"((float[3] x) => (float[3] dx) {
  y = Neg (x)
  z = Neg (y)
  dy, dz = ai.caesura.YieldOp (y, z)
  s = Add (dy, dz)
  dx = Mul (s, y)
})";

TEST(Yield, HandsOutMovedAndCopiedValues) {
  auto plan = PlanOf(GraphOf(kTwoValues), {Ramp(Shape{3})});
  ASSERT_EQ(plan->yields().size(), 1u);
  EXPECT_FALSE(plan->yields()[0].outputs[0].move);  // backward reads y
  EXPECT_TRUE(plan->yields()[0].outputs[1].move);
  ExecutionState state(plan);
  const Values yielded = ToYield(state, {Floats(Shape{3}, {1, 2, 3})});
  EXPECT_EQ(state.yield_index(), 0);
  EXPECT_THAT(ToFloats(yielded[0]), ElementsAre(-1, -2, -3));
  EXPECT_THAT(ToFloats(yielded[1]), ElementsAre(1, 2, 3));
  EXPECT_EQ(yielded[1].tensor().buffer().use_count(), 1);
}

TEST(Yield, TheCallerMayOverwriteOrFreeWhatItGot) {
  auto plan = PlanOf(GraphOf(kTwoValues), {Ramp(Shape{3})});
  for (bool overwrite : {true, false}) {
    ExecutionState state(plan);
    Values yielded = ToYield(state, {Floats(Shape{3}, {1, 2, 3})});
    if (overwrite) Overwrite(yielded);
    yielded.clear();
    // dx = (dy + dz) * y = 3 * -x
    const Values results =
        FromYield(state, {Floats(Shape{3}, {1, 1, 1}), Floats(Shape{3}, {2, 2, 2})});
    EXPECT_THAT(ToFloats(results[0]), ElementsAre(-3, -6, -9));
  }
}

TEST(Yield, WhatTheCallerKeepsOutlivesStateAndPlan) {
  Values yielded, fetched;
  {
    auto plan = PlanOf(GraphOf(kTwoValues), {Ramp(Shape{3})});
    ExecutionState state(plan);
    yielded = ToYield(state, {Floats(Shape{3}, {1, 2, 3})});
    fetched = FromYield(state, {RuntimeValue(), Floats(Shape{3}, {2, 2, 2})});
    ToYield(state, {Floats(Shape{3}, {9, 9, 9})});  // the next run does not touch them
  }
  EXPECT_THAT(ToFloats(yielded[0]), ElementsAre(-1, -2, -3));
  EXPECT_THAT(ToFloats(yielded[1]), ElementsAre(1, 2, 3));
  EXPECT_THAT(ToFloats(fetched[0]), ElementsAre(-2, -4, -6));
}

TEST(Yield, NotTakenValuesAreNoTrouble) {
  auto plan = PlanOf(GraphOf(kTwoValues), {Ramp(Shape{3})});
  ExecutionState state(plan);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(state.Start({Floats(Shape{3}, {1, 2, 3})}, {}).ok());
    ASSERT_TRUE(PartialExecutor::Run(state).ok());
    EXPECT_THAT(ToFloats(FromYield(state, {Floats(Shape{3}, {1, 1, 1}), RuntimeValue()})[0]),
                ElementsAre(-1, -2, -3));
    EXPECT_TRUE(state.TakeFetches().empty());  // once a run
  }
}

TEST(Yield, OneValueTwiceAndAViewOfIt) {
  auto text = R"((float[2,2] x) => (float[2,2] dx) <int64[1] flat = {-1}, int64[2] sq = {2, 2}> {
    y = Neg (x)
    v = Reshape (y, flat)
    d0, d1, d2 = ai.caesura.YieldOp (y, y, v)
    s = Add (d0, d1)
    r = Reshape (d2, sq)
    dx = Add (s, r)
  })";
  auto plan = PlanOf(GraphOf(text), {Ramp(Shape{2, 2})});
  ExecutionState state(plan);
  Values yielded = ToYield(state, {Floats(Shape{2, 2}, {1, 2, 3, 4})});
  EXPECT_EQ(yielded[2].tensor().shape(), (Shape{4}));
  for (size_t i = 0; i < yielded.size(); ++i) {
    EXPECT_THAT(ToFloats(yielded[i]), ElementsAre(-1, -2, -3, -4)) << i;
    Overwrite({yielded[i]});  // three values, three buffers
  }
  const Values results = FromYield(
      state, {Floats(Shape{2, 2}, {1, 1, 1, 1}), RuntimeValue(), Floats(Shape{4}, {1, 2, 3, 4})});
  EXPECT_THAT(ToFloats(results[0]), ElementsAre(2, 3, 4, 5));
}

TEST(Yield, FeedsParametersAndConstantsAreCopied) {
  auto graph = GraphOf(
      R"((float[2] x) => (float[2] y, float[2] k) <float[2] w = {5, 6}, float[2] k = {7, 8}> {
    d0, d1, d2 = ai.caesura.YieldOp (x, w, k)
    a = Add (x, w)
    y = Add (a, k)
  })");
  auto plan = PlanOf(graph, {Ramp(Shape{2})}, {.parameters = {graph->FindValue("w")}});
  ParameterSet parameters;
  parameters.Add("w", Tensor::Of<float>(Shape{2}, {5, 6}));
  RunOptions options;
  options.parameters = &parameters;
  ExecutionState state(plan);
  for (int i = 0; i < 2; ++i) {
    const Values yielded = ToYield(state, {Floats(Shape{2}, {1, 2})}, options);
    EXPECT_THAT(ToFloats(yielded[2]), ElementsAre(7, 8));
    Overwrite(yielded);
    const Values results = FromYield(state, {RuntimeValue(), RuntimeValue(), RuntimeValue()});
    EXPECT_THAT(ToFloats(results[0]), ElementsAre(13, 16));
    Overwrite(results);
  }
}

TEST(Yield, AbsentIsZerosAndOneElementIsSpread) {
  auto plan = PlanOf(GraphOf(kTwoValues), {Ramp(Shape{3})});
  ExecutionState state(plan);
  ToYield(state, {Floats(Shape{3}, {1, 2, 3})});
  EXPECT_THAT(ToFloats(FromYield(state, {RuntimeValue(), RuntimeValue()})[0]),
              ElementsAre(0, 0, 0));
  ToYield(state, {Floats(Shape{3}, {1, 2, 3})});
  EXPECT_THAT(ToFloats(FromYield(state, {Tensor::Scalar<float>(2), Floats(Shape{1, 1}, {1})})[0]),
              ElementsAre(-3, -6, -9));
}

TEST(Yield, WrongValuesAreNamedAndTheStateGoesOn) {
  auto plan = PlanOf(GraphOf(R"((float[3] x) => (float[3] dx) {
    y = Neg (x)
    dy = ai.caesura.YieldOp <names = ["loss"]> (y)
    dx = Mul (dy, y)
  })"),
                     {Ramp(Shape{3})});
  ExecutionState state(plan);
  EXPECT_FALSE(state.Resume({RuntimeValue()}).ok());
  ToYield(state, {Floats(Shape{3}, {1, 2, 3})});
  EXPECT_FALSE(PartialExecutor::Run(state).ok());  // not before Resume
  EXPECT_THAT(state.Resume({}).message(), HasSubstr("takes 1 values, got 0"));
  EXPECT_EQ(
      state.Resume({Ramp(Shape{2})}).message(),
      "the value given for 'loss' must be float32[3], or absent, or one element; got float32[2]");
  EXPECT_THAT(state.Resume({Tensor::Zeros(DType::kFloat64, Shape{3})}).message(),
              HasSubstr("got float64[3]"));
  EXPECT_THAT(state.Resume({Tensor::Scalar<double>(1)}).message(), HasSubstr("got float64[]"));
  EXPECT_THAT(state.Resume({RuntimeValue::Sequence({})}).message(), HasSubstr("got a sequence"));
  EXPECT_EQ(state.stage(), ExecutionState::Stage::kYielded);
  EXPECT_THAT(ToFloats(FromYield(state, {Floats(Shape{3}, {1, 1, 1})})[0]),
              ElementsAre(-1, -2, -3));
}

TEST(Yield, NonDifferentiableOutputsTakeNothingIn) {
  auto plan = PlanOf(GraphOf(R"((float[2] x, int64[2] i) => (float[2] dx) {
    y = Neg (x)
    f = Cast <to = 1> (i)
    dy = ai.caesura.YieldOp <non_differentiable_outputs = [0, 2]> (i, y, f)
    dx = Mul (dy, f)
  })"),
                     {Ramp(Shape{2}), Tensor::Of<int64_t>(Shape{2}, {3, 4})});
  ExecutionState state(plan);
  const Values yielded =
      ToYield(state, {Floats(Shape{2}, {1, 2}), Tensor::Of<int64_t>(Shape{2}, {3, 4})});
  EXPECT_EQ(yielded[0].tensor().ToVector<int64_t>(), (std::vector<int64_t>{3, 4}));
  EXPECT_THAT(ToFloats(FromYield(state, {Floats(Shape{2}, {10, 10})})[0]), ElementsAre(30, 40));
}

TEST(Yield, TooManyOutputsAreRefused) {
  auto graph = GraphOf(
      "(float[2] x) => (float[2] y) { "
      "d = ai.caesura.YieldOp <non_differentiable_outputs = [0]> (x) y = Neg (x) }");
  EXPECT_THAT(TryPlan(graph, {Ramp(Shape{2})}).status().message(),
              HasSubstr("has 1 outputs, but only 0 of its inputs are differentiable"));
}

TEST(Yield, ManyInOneGraph) {
  auto plan = PlanOf(GraphOf(R"((float[2] x) => (float[2] z) {
    a = Neg (x)
    b = ai.caesura.YieldOp (a)
    c = Add (a, b)
    d = ai.caesura.YieldOp (c)
    e = ai.caesura.YieldOp (d)
    z = Add (e, c)
  })"),
                     {Ramp(Shape{2})});
  ExecutionState state(plan);
  EXPECT_THAT(ToFloats(ToYield(state, {Floats(Shape{2}, {1, 2})})[0]), ElementsAre(-1, -2));
  ASSERT_TRUE(state.Resume({Floats(Shape{2}, {10, 10})}).ok());
  ASSERT_EQ(PartialExecutor::Run(state).value(), RunOutcome::kYielded);
  EXPECT_EQ(state.yield_index(), 1);
  EXPECT_THAT(ToFloats(state.TakeYielded()[0]), ElementsAre(9, 8));
  ASSERT_TRUE(state.Resume({Floats(Shape{2}, {5, 5})}).ok());
  ASSERT_EQ(PartialExecutor::Run(state).value(), RunOutcome::kYielded);
  const Values handed_back = state.TakeYielded();  // the caller's own value, as a copy
  EXPECT_THAT(ToFloats(handed_back[0]), ElementsAre(5, 5));
  EXPECT_THAT(ToFloats(FromYield(state, {Floats(Shape{2}, {1, 1})})[0]), ElementsAre(10, 9));
}

TEST(Yield, AtTheVeryEndAndWithNothingToTakeIn) {
  auto plan = PlanOf(GraphOf("(float[2] x) => () { y = Neg (x) d = ai.caesura.YieldOp (y) }"),
                     {Ramp(Shape{2})});
  ExecutionState state(plan);
  ToYield(state, {Ramp(Shape{2})});
  EXPECT_TRUE(FromYield(state, {RuntimeValue()}).empty());
  EXPECT_EQ(state.stage(), ExecutionState::Stage::kFinished);
}

TEST(Yield, ShapesThatShowOnlyInTheRun) {
  auto plan = PlanOf(GraphOf(R"((float[6] x, int64[2] to) => (float[a,b] dx) {
    y = Reshape (x, to)
    dy = ai.caesura.YieldOp (y)
    dx = Mul (dy, y)
  })"),
                     {Ramp(Shape{6}), Tensor::Of<int64_t>(Shape{2}, {2, 3})});
  ExecutionState state(plan);
  const Values feeds = {Floats(Shape{6}, {1, 2, 3, 4, 5, 6}),
                        Tensor::Of<int64_t>(Shape{2}, {2, 3})};
  Values yielded = ToYield(state, feeds);
  EXPECT_EQ(yielded[0].tensor().shape(), (Shape{2, 3}));
  Overwrite(yielded);
  EXPECT_THAT(state.Resume({Ramp(Shape{6})}).message(), HasSubstr("must be float32[2, 3]"));
  EXPECT_THAT(ToFloats(FromYield(state, {Tensor::Scalar<float>(2)})[0]),
              ElementsAre(2, 4, 6, 8, 10, 12));
  ToYield(state, feeds);
  EXPECT_THAT(ToFloats(FromYield(state, {RuntimeValue()})[0]), ElementsAre(0, 0, 0, 0, 0, 0));
}

// --- a second backward ---

TEST(KeptStates, TwoBackwardsFromOneForward) {
  TrainingStep step;
  auto plan = step.Plan();
  const StepResults expected = Uncut(step, plan);
  ParameterSet parameters = step.Parameters(), others = step.Parameters();
  RunOptions options;
  options.parameters = &parameters;
  options.seed = 7;
  ExecutionState state(plan);
  Overwrite(ToYield(state, step.feeds, options));
  auto kept = state.Clone();
  ASSERT_TRUE(kept.ok());
  Values first = FromYield(state, step.gradients);
  EXPECT_TRUE(SameBits(first, expected.fetches));
  Overwrite(first);
  // Other gradients, then the same ones again from a clone of the clone.
  auto again = (*kept)->Clone();
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(SameBits(FromYield(**kept, {RuntimeValue(), step.gradients[1]}), expected.fetches));
  EXPECT_TRUE(SameBits(FromYield(**again, step.gradients), expected.fetches));
}

TEST(KeptStates, CloneAtEachBoundary) {
  TrainingStep step;
  auto plan = step.Plan();
  const StepResults expected = Uncut(step, plan);
  for (int at = 0; at < static_cast<int>(plan->steps().size()); ++at) {
    ExecutionState state(plan);
    ParameterSet parameters = step.Parameters();
    RunOptions options;
    options.parameters = &parameters;
    options.seed = 7;
    ASSERT_TRUE(state.Start(step.feeds, options).ok());
    std::unique_ptr<ExecutionState> copy;
    Values fetches;
    while (state.stage() != ExecutionState::Stage::kFinished && copy == nullptr) {
      auto outcome = PartialExecutor::Run(state, at);
      ASSERT_TRUE(outcome.ok());
      if (*outcome == RunOutcome::kStopped) copy = state.Clone().value();
      if (*outcome == RunOutcome::kYielded) {
        ASSERT_TRUE(state.Resume(step.gradients).ok());
      }
    }
    if (copy == nullptr) continue;  // the yield itself
    state.Cancel();                 // the copy stands alone
    if (PartialExecutor::Run(*copy).value() == RunOutcome::kYielded) {
      ASSERT_TRUE(copy->Resume(step.gradients).ok());
      ASSERT_TRUE(PartialExecutor::Run(*copy).ok());
    }
    EXPECT_TRUE(SameBits(copy->TakeFetches(), expected.fetches)) << at;
  }
}

TEST(KeptStates, CancelDropsARunAndKeepsTheState) {
  TrainingStep step;
  auto plan = step.Plan();
  const StepResults expected = Uncut(step, plan);
  ExecutionState state(plan);
  ParameterSet parameters = step.Parameters();
  RunOptions options;
  options.parameters = &parameters;
  ToYield(state, step.feeds, options);
  state.Cancel();
  EXPECT_EQ(state.stage(), ExecutionState::Stage::kIdle);
  auto results = RunStep(step, state, [](ExecutionState& s) { return PartialExecutor::Run(s); });
  ASSERT_TRUE(results.ok());
  EXPECT_TRUE(*results == expected);
}

}  // namespace
}  // namespace caesura::testing
