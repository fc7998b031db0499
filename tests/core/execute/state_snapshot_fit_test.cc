// SPDX-License-Identifier: Apache-2.0
// Snapshots and plans that are not alike: the differences that are named, those that do not matter,
// and those that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/execute/state_snapshot.h"
#include "tests/core/execute/training_step.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(StateSnapshots, NameTheDifferencesOfAPlan) {
  const TrainingStep step;
  const auto plan = step.Plan();
  ParameterSet parameters = step.Parameters();
  ExecutionState state(plan);
  ASSERT_TRUE(state.Start(step.feeds, {.parameters = &parameters}).ok());
  StateSnapshot snapshot = state.Capture().value();
  EXPECT_THAT(DescribeDifferences(snapshot, *plan), IsEmpty());
  EXPECT_THAT(DescribeDifferences(snapshot, *PlanOf(step.graph, step.feeds, step.options(3))),
              ElementsAre("threads: 1 there, 3 here"));
  snapshot.fingerprint ^= 1;
  EXPECT_THAT(DescribeDifferences(snapshot, *plan), ElementsAre(HasSubstr("kernels: ")));
  snapshot.threads = 4;
  snapshot.providers = {"tiny ()", "big (avx2)"};
  EXPECT_THAT(DescribeDifferences(snapshot, *plan),
              ElementsAre("threads: 4 there, 1 here",
                          "providers: tiny (), big (avx2) there, tiny () here"));
}

TEST(StateSnapshots, AreTakenOfRunsThatWaitOnly) {
  const auto plan = PlanOf(GraphOf("(float[2] x) => (float[2] y) { y = Neg (x) }"), {Ramp({2})});
  ExecutionState state(plan);
  EXPECT_EQ(state.Capture().status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(Finish(state, {Ramp({2})}).ok());
  EXPECT_EQ(state.Capture().status().code(), StatusCode::kInvalidArgument);
}

// A run that has not begun fits other nodes, but not other inputs or parameters.
TEST(StateSnapshots, FitPlansWithTheSameInputsAndParameters) {
  const auto graph =
      GraphOf("(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }");
  const auto plan = PlanOf(graph, {Ramp({2})}, {.parameters = {graph->FindValue("w")}});
  ParameterSet parameters;
  parameters.Add("w", Tensor::Of<float>(Shape{2}, {1, 2}));
  ExecutionState state(plan);
  ASSERT_TRUE(state.Start({Floats(Shape{2}, {5, 6})}, {.parameters = &parameters}).ok());
  const StateSnapshot snapshot = state.Capture().value();
  const auto restored = [&](const std::string& text, bool has_parameter, Values feeds,
                            Values* results = nullptr) {
    const auto to = GraphOf(text);
    const std::vector<const Value*> own = {to->FindValue("w")};
    ExecutionState other(PlanOf(to, feeds, {.parameters = has_parameter ? own : decltype(own)()}));
    const Status status = other.Restore(snapshot, {.parameters = &parameters});
    if (results != nullptr && PartialExecutor::Run(other).ok()) *results = other.TakeFetches();
    return status.message();
  };
  Values results;
  const std::string initial = " => (float[2] y) <float[2] w = {1, 2}> ";
  EXPECT_EQ(restored("(float[2] x)" + initial + "{ n = Neg (x) y = Mul (n, w) }", true, {Ramp({2})},
                     &results),
            "");
  EXPECT_THAT(ToFloats(results.at(0)), ElementsAre(-5, -12));
  EXPECT_THAT(restored("(float[2] z)" + initial + "{ y = Add (z, w) }", true, {Ramp({2})}),
              HasSubstr("input 0 is 'x' in the snapshot and 'z' in the program"));
  EXPECT_THAT(restored("(float[2] x, float[2] z)" + initial + "{ y = Add (x, w) }", true,
                       {Ramp({2}), Ramp({2})}),
              HasSubstr("the number of inputs is 1 in the snapshot and 2 in the program"));
  EXPECT_THAT(restored("(float[2] x)" + initial + "{ y = Add (x, w) }", false, {Ramp({2})}),
              HasSubstr("the number of parameters is 1 in the snapshot and 0 in the program"));
}

}  // namespace
}  // namespace caesura::testing
