// SPDX-License-Identifier: Apache-2.0
#include "core/execute/value_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

TEST(ValueCaching, HitsOnlyWhileTheVersionStands) {
  auto graph = GraphOf(R"((float[1,2] x) => (float[1,2] y, float[2,2] t)
      <float[2,2] w = {1, 2, 3, 4}, float[1,2] b = {1, 1}, float[1] two = {2}> {
    t = Transpose (w)
    s = Mul (t, two)
    c = Mul (b, two)
    m = MatMul (x, s)
    y = Add (m, c)
  })");
  const Value *w = graph->FindValue("w"), *b = graph->FindValue("b");
  auto plan = PlanOf(graph, {Ramp(Shape{1, 2})}, {.parameters = {w, b}});
  ASSERT_EQ(plan->cache_entries(), 3);  // t, s, c
  ParameterSet parameters;
  parameters.Add("w", Tensor::Of<float>(Shape{2, 2}, {1, 2, 3, 4}));
  parameters.Add("b", Tensor::Of<float>(Shape{1, 2}, {1, 1}));
  ValueCache cache(plan->cache_entries());
  RunOptions options;
  options.parameters = &parameters;
  options.cache = &cache;
  ExecutionState state(plan);
  auto run = [&] { return Finish(state, {Floats(Shape{1, 2}, {1, 10})}, options).value(); };
  // s = 2 W^T = [[2, 6], [4, 8]]; y = [42, 86] + 2 b
  Values results = run();
  EXPECT_THAT(ToFloats(results[0]), ElementsAre(44, 88));
  EXPECT_EQ(cache.misses(), 3u);  // filled on the first run
  EXPECT_EQ(cache.hits(), 0u);
  std::memset(results[1].tensor().raw(), 0xff,
              results[1].tensor().bytes());  // t was handed out as a copy
  EXPECT_THAT(ToFloats(run()[0]), ElementsAre(44, 88));
  EXPECT_EQ(cache.hits(), 3u);

  parameters.tensor(1).data<float>()[0] = 100;
  EXPECT_THAT(ToFloats(run()[0]), ElementsAre(44, 88));  // nobody said so: the old value stands
  parameters.Touch(1);
  EXPECT_THAT(ToFloats(run()[0]), ElementsAre(242, 88));
  EXPECT_EQ(cache.hits(), 8u);  // t and s stood
  EXPECT_EQ(cache.misses(), 4u);

  parameters.Replace(0, Tensor::Of<float>(Shape{2, 2}, {0, 0, 0, 0}));
  EXPECT_THAT(ToFloats(run()[0]), ElementsAre(200, 2));
  EXPECT_EQ(cache.misses(), 6u);
  parameters.TouchAll();
  run();
  EXPECT_EQ(cache.misses(), 9u);
  cache.Clear();
  run();
  EXPECT_EQ(cache.misses(), 12u);
}

TEST(ValueCaching, AValueOfTwoParametersFollowsEachOfThem) {
  auto graph = GraphOf(R"((float[1] x) => (float[1] y) <float[1] v = {1}, float[1] w = {10}> {
    s = Add (v, w)
    y = Add (s, x)
  })");
  auto plan = PlanOf(graph, {Ramp(Shape{1})},
                     {.parameters = {graph->FindValue("v"), graph->FindValue("w")}});
  ParameterSet parameters;
  parameters.Add("v", Tensor::Of<float>(Shape{1}, {1}));
  parameters.Add("w", Tensor::Of<float>(Shape{1}, {10}));
  ValueCache cache(plan->cache_entries());
  RunOptions options;
  options.parameters = &parameters;
  options.cache = &cache;
  ExecutionState state(plan);
  auto run = [&] { return ToFloats(Finish(state, {Floats(Shape{1}, {0})}, options).value()[0]); };
  EXPECT_THAT(run(), ElementsAre(11));
  parameters.Replace(0, Tensor::Of<float>(Shape{1}, {2}));
  EXPECT_THAT(run(), ElementsAre(12));
  parameters.Replace(1, Tensor::Of<float>(Shape{1}, {20}));
  EXPECT_THAT(run(), ElementsAre(22));
  EXPECT_EQ(cache.misses(), 3u);
}

TEST(ValueCaching, WithoutACacheValuesAreComputedInEachRun) {
  auto graph =
      GraphOf("(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { n = Neg (w) y = Add (n, x) }");
  auto plan = PlanOf(graph, {Ramp(Shape{2})}, {.parameters = {graph->FindValue("w")}});
  ParameterSet parameters;
  parameters.Add("w", Tensor::Of<float>(Shape{2}, {1, 2}));
  RunOptions options;
  options.parameters = &parameters;
  ExecutionState state(plan);
  EXPECT_THAT(ToFloats(Finish(state, {Floats(Shape{2}, {0, 0})}, options).value()[0]),
              ElementsAre(-1, -2));
  parameters.tensor(0).data<float>()[0] = 5;
  EXPECT_THAT(ToFloats(Finish(state, {Floats(Shape{2}, {0, 0})}, options).value()[0]),
              ElementsAre(-5, -2));
}

TEST(ValueCaching, ARunKeepsWhatItHasFound) {
  auto graph = GraphOf(R"((float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
    n = Neg (w)
    d = ai.caesura.YieldOp (x)
    y = Add (n, d)
  })");
  auto plan = PlanOf(graph, {Ramp(Shape{2})}, {.parameters = {graph->FindValue("w")}});
  ParameterSet parameters;
  parameters.Add("w", Tensor::Of<float>(Shape{2}, {1, 2}));
  ValueCache cache(1);
  RunOptions options;
  options.parameters = &parameters;
  options.cache = &cache;
  ExecutionState state(plan), other(plan);
  ASSERT_TRUE(state.Start({Floats(Shape{2}, {0, 0})}, options).ok());
  ASSERT_TRUE(PartialExecutor::Run(state).ok());
  parameters.Replace(0, Tensor::Of<float>(Shape{2}, {9, 9}));
  ASSERT_TRUE(other.Start({Floats(Shape{2}, {0, 0})}, options).ok());
  ASSERT_TRUE(PartialExecutor::Run(other).ok());  // replaces the entry
  cache.Clear();
  for (auto [s, expected] : {std::pair{&state, -1.0f}, {&other, -9.0f}}) {
    ASSERT_TRUE(s->Resume({RuntimeValue()}).ok());
    ASSERT_TRUE(PartialExecutor::Run(*s).ok());
    EXPECT_EQ(ToFloats(s->TakeFetches()[0])[0], expected);
  }
}

}  // namespace
}  // namespace caesura::testing
