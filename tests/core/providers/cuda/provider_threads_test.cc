// SPDX-License-Identifier: Apache-2.0
// States of the CUDA provider in threads. Also run under ThreadSanitizer (tests/run.sh).
#include <atomic>
#include <thread>

#include "core/providers/cpu_provider.h"
#include "core/runtime/plan_cache.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/providers/cuda/standin_cuda.h"

namespace caesura::testing {
namespace {

constexpr int kRounds = 4;
constexpr char kSharedNet[] = R"((float[6, 8] x, float[8, 8] w, int64[6] rows) => (y, mean) {
  h = MatMul (x, w)
  a = Gelu (h)
  s = Add (a, x)
  y = Gather (s, rows)
  mean = ReduceMean <keepdims = 0> (s)
})";

class CudaProviderThreads : public StandinCuda {
 protected:
  const Values feeds_ = {Ramp({6, 8}), Ramp({8, 8}, 0.5f),
                         Tensor::Of<int64_t>(Shape{6}, {5, 0, 3, 3, 1, 2})};

  // Runs each plan in a thread and a state of its own, several times; the number of runs with the
  // wanted bits.
  int RightRuns(const std::vector<SharedPlan>& plans, const Values& wanted) {
    std::atomic<int> right{0};
    std::vector<std::thread> threads;
    for (const SharedPlan& plan : plans) {
      threads.emplace_back([&, plan] {
        ExecutionState state(plan);
        for (int round = 0; round < kRounds; ++round) {
          auto got = Finish(state, feeds_);
          if (got.ok() && SameBits(*got, wanted)) ++right;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return right;
  }
};

TEST_F(CudaProviderThreads, TwoStatesOnTwoStreams) {
  const auto graph = GraphOf(kSharedNet);
  const auto cpu = MakeCpuProvider();
  const SharedPlan one = PlanOf(graph, feeds_, {}, {Provider(), cpu});
  const SharedPlan two = PlanOf(graph, feeds_, {}, {Provider(), cpu});
  const Values wanted = RunPlan(one, feeds_);
  EXPECT_EQ(RightRuns({one, two}, wanted), 2 * kRounds);
}

TEST_F(CudaProviderThreads, TwoStatesOfOnePlan) {
  const SharedPlan plan = PlanOf(GraphOf(kSharedNet), feeds_, {}, {Provider(), MakeCpuProvider()});
  const Values wanted = RunPlan(plan, feeds_);
  EXPECT_EQ(RightRuns({plan, plan}, wanted), 2 * kRounds);
}

}  // namespace
}  // namespace caesura::testing
