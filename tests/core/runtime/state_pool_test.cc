// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/state_pool.h"

#include <gtest/gtest.h>

#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura {
namespace {

using namespace testing;  // NOLINT: the fixture's names

// Plans of one graph for several sizes, and how many arenas and results their runs allocate.
class StatePoolTest : public ::testing::Test {
 protected:
  std::shared_ptr<const ExecutionPlan> Plan(int64_t size) {
    return PlanOf(graph_, {Ramp(Shape{size})}, {}, {std::make_shared<TinyProvider>(&allocator_)});
  }
  // One run in a state of the pool's; gives the number of allocations, one of which is the
  // result's.
  int RunOnce(const std::shared_ptr<const ExecutionPlan>& plan, int64_t size) {
    allocator_.Heal();
    std::unique_ptr<ExecutionState> state = pool_.Borrow(plan);
    auto results = Finish(*state, {Ramp(Shape{size})});
    EXPECT_TRUE(results.ok()) << results.status().ToString();
    EXPECT_TRUE(SameBits(results->at(0),
                         RunPlan(PlanOf(graph_, {Ramp(Shape{size})}), {Ramp(Shape{size})})[0]));
    pool_.Return(std::move(state));
    return allocator_.calls();
  }

  std::shared_ptr<Graph> graph_ =
      GraphOf("(float[n] x) => (float[n] y) { a = Neg (x) b = Add (a, x) y = Add (a, b) }");
  FailingAllocator allocator_;  // counts, here
  StatePool pool_{4};
};

TEST_F(StatePoolTest, PlansShareAnArena) {
  const auto small = Plan(64), large = Plan(1024);
  ASSERT_GT(small->arenas()[0], 0u);
  EXPECT_EQ(RunOnce(small, 64), 2);
  EXPECT_EQ(RunOnce(small, 64), 1);
  EXPECT_EQ(RunOnce(large, 1024), 2);  // the small one's is given up
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(RunOnce(small, 64), 1);
    EXPECT_EQ(RunOnce(large, 1024), 1);
  }
  for (int64_t size = 65; size < 100; ++size)
    EXPECT_EQ(RunOnce(Plan(size), size), 1) << size;  // more than the pool keeps
}

TEST_F(StatePoolTest, RunsAtTheSameTimeHaveTheirOwn) {
  const auto small = Plan(64), large = Plan(1024);
  RunOnce(large, 1024);
  std::unique_ptr<ExecutionState> first = pool_.Borrow(large);
  EXPECT_TRUE(first->has_arenas());
  EXPECT_FALSE(pool_.Borrow(small)->has_arenas());
  EXPECT_EQ(RunOnce(small, 64), 2);
  pool_.Return(std::move(first));
  EXPECT_EQ(RunOnce(small, 64), 1);
  EXPECT_EQ(RunOnce(large, 1024), 1);  // each finds its own again
  EXPECT_EQ(RunOnce(small, 64), 1);
}

}  // namespace
}  // namespace caesura
