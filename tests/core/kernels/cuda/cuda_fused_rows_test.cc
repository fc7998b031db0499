// SPDX-License-Identifier: Apache-2.0
// Sums over rows, which blocks add up together: the CPU's numbers, one launch, and the same bits
// in each order of blocks.
#include <cmath>

#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/providers/cuda/standin_cuda.h"
#include "training/kernels/training_ops.h"

namespace caesura::testing {
namespace {

class CudaRowSums : public StandinCuda {
 protected:
  void SetUp() override {
    StandinCuda::SetUp();
    ASSERT_TRUE(RegisterTrainingOpSchemas().ok());
  }

  void Compare(const std::string& body, const Values& feeds, double tolerance) {
    const auto graph = GraphOf(body);
    const auto cpu = MakeCpuProvider(RegisterTrainingKernels), cuda = Provider();
    const Values wanted = RunPlan(PlanOf(graph, feeds, {}, {cpu}), feeds);
    const auto plan = PlanOf(graph, feeds, {}, {cuda, cpu});
    const uint64_t before = Operations("kernel ");
    const Values got = RunPlan(plan, feeds);
    if (!OnGpu()) {
      EXPECT_EQ(Operations("kernel ") - before, 1u);
    }
    for (int run = 0; run < 3; ++run) EXPECT_TRUE(SameBits(RunPlan(plan, feeds), got));
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t k = 0; k < got.size(); ++k) {
      const auto a = got[k].tensor().ToVector<double>(), b = wanted[k].tensor().ToVector<double>();
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i)
        ASSERT_NEAR(a[i], b[i], tolerance * std::max(1.0, std::abs(b[i])))
            << "output " << k << " at " << i;
    }
  }
};

// Fewer rows than blocks, a last group of blocks that is not full, and more rows than blocks.
TEST_F(CudaRowSums, OfAnyNumberOfRows) {
  for (int rows : {2, 17, 300, 700}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    const std::string n = std::to_string(rows);
    Compare("(float[" + n +
                ", 40] x) => (float[40] y) <int64[1] shape = {40}> "
                "{ y = ai.caesura.SumTo (x, shape) }",
            {Ramp(Shape{rows, 40})}, 1e-5);
  }
}

TEST_F(CudaRowSums, SeveralOfOneLaunch) {
  Compare(R"((float[90, 33] dy, float[90, 33] x, float[33] s, float[90, 1] m, float[90, 1] d) =>
             (float[90, 33] dx, float[33] ds, float[33] db) {
    dx, ds, db = ai.caesura.LayerNormalizationGrad <axis = -1> (dy, x, s, m, d) })",
          {Ramp(Shape{90, 33}), Ramp(Shape{90, 33}, 0.125f), Ramp(Shape{33}),
           Ramp(Shape{90, 1}, 0.0625f), Ramp(Shape{90, 1}, 0.5f)},
          1e-4);
}

}  // namespace
}  // namespace caesura::testing
