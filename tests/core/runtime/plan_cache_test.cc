// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/plan_cache.h"

#include <gtest/gtest.h>

#include <future>

#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

TEST(PlanCache, MakeAPlanPerSignatureAndForgetTheOldest) {
  auto graph = GraphOf("(float[N] x) => (float[N] y) { y = Neg (x) }");
  PlanCache cache(graph, Tiny(), {});
  auto plan = cache.Get({Ramp(Shape{1})}).value();
  EXPECT_EQ(cache.Get({Ramp(Shape{1}, 3.0f)}).value(), plan);
  EXPECT_EQ(cache.plans_made(), 1);
  for (int64_t n = 2; n < 2 + static_cast<int64_t>(PlanCache::kMaxPlans); ++n) {
    ASSERT_TRUE(cache.Get({Ramp(Shape{n})}).ok());
  }
  EXPECT_EQ(cache.plans_made(), 1 + static_cast<int>(PlanCache::kMaxPlans));
  EXPECT_NE(cache.Get({Ramp(Shape{1})}).value(), plan);  // was forgotten, and lives on in our hand
  EXPECT_EQ(ToFloats(RunPlan(plan, {Ramp(Shape{1})})[0]), (std::vector<float>{-0.25f}));
}

// Without that, the second Get would wait for the first one until the test's time is up.
TEST(PlanCache, AKnownShapeDoesNotWaitWhileAnotherIsPlanned) {
  std::promise<void> reached, release;
  const PlanFitter fit = [&](const SharedPlan& plan) -> Result<SharedPlan> {
    if (plan->feeds()[0].shape == Shape{2}) {
      reached.set_value();
      release.get_future().wait();
    }
    return plan;
  };
  PlanCache cache(GraphOf("(float[N] x) => (float[N] y) { y = Neg (x) }"), Tiny(), {}, {}, fit);
  ASSERT_TRUE(cache.Get({Ramp(Shape{1})}).ok());
  auto slow = std::async(std::launch::async, [&] { return cache.Get({Ramp(Shape{2})}).ok(); });
  reached.get_future().wait();
  EXPECT_TRUE(cache.Get({Ramp(Shape{1})}).ok());
  release.set_value();
  EXPECT_TRUE(slow.get());
  EXPECT_EQ(cache.plans_made(), 2);
}

TEST(PlanCache, ThreadsThatWantOneShapeGetOnePlan) {
  PlanCache cache(GraphOf("(float[N] x) => (float[N] y) { y = Neg (x) }"), Tiny(), {});
  std::vector<std::future<SharedPlan>> plans;
  for (int i = 0; i < 4; ++i) {
    plans.push_back(
        std::async(std::launch::async, [&] { return cache.Get({Ramp(Shape{3})}).value(); }));
  }
  const SharedPlan first = plans[0].get();
  for (size_t i = 1; i < plans.size(); ++i) EXPECT_EQ(plans[i].get(), first);
  EXPECT_EQ(cache.plans_made(), 1);
}

TEST(PlanCache, AFitterThatFailsFailsTheRunAndIsAskedAgain) {
  int asked = 0;
  const PlanFitter fit = [&](const SharedPlan& plan) -> Result<SharedPlan> {
    if (++asked == 1) return OutOfMemory("no plan fits");
    return plan;
  };
  PlanCache cache(GraphOf("(float[N] x) => (float[N] y) { y = Neg (x) }"), Tiny(), {}, {}, fit);
  EXPECT_EQ(cache.Get({Ramp(Shape{1})}).status().code(), StatusCode::kOutOfMemory);
  EXPECT_TRUE(cache.Get({Ramp(Shape{1})}).ok());
}

}  // namespace
}  // namespace caesura::testing
