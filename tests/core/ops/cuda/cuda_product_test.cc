// SPDX-License-Identifier: Apache-2.0
// Products whose large extents are no multiples of eight, and those of values that the plan lays
// out with gaps after their rows: the CPU's numbers.
#include <cmath>
#include <random>

#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/ops/cuda/kernel_feeds.h"
#include "tests/core/providers/cuda/standin_cuda.h"

namespace caesura::testing {
namespace {

class CudaProducts : public StandinCuda {
 protected:
  // Runs the graph on the device and on the CPU, and returns the device's plan.
  std::shared_ptr<const ExecutionPlan> Compare(const std::string& text, const Values& feeds,
                                               double tolerance) {
    const auto cpu = MakeCpuProvider();
    std::shared_ptr<const ExecutionPlan> plan;
    const auto run = [&](const ProviderList& providers) -> Values {
      plan = PlanOf(GraphOf(text), feeds, {}, providers);
      if (plan == nullptr) return {};
      ExecutionState state(plan);
      Result<Values> got = Finish(state, feeds);
      EXPECT_TRUE(got.ok()) << got.status().ToString();
      return got.ok() ? *got : Values();
    };
    const Values wanted = run({cpu}), got = run({Provider(), cpu});
    for (const PlanStep& step : plan->steps()) {
      const bool computes = step.kind == PlanStep::Kind::kCompute;
      EXPECT_FALSE(computes && step.provider->device().is_host()) << step.node->Label();
    }
    EXPECT_EQ(got.size(), wanted.size());
    for (size_t o = 0; o < std::min(got.size(), wanted.size()); ++o) {
      const auto a = got[o].tensor().ToVector<double>(), b = wanted[o].tensor().ToVector<double>();
      double apart = 0;
      for (size_t i = 0; i < a.size(); ++i)
        apart = std::max(apart, std::fabs(a[i] - b[i]) / std::max(1.0, std::fabs(b[i])));
      EXPECT_LE(apart, tolerance) << "output " << o;
    }
    return plan;
  }
};

TEST_F(CudaProducts, LargeExtentsThatAreNoMultiplesOfEight) {
  std::mt19937 random(5);
  struct Case {
    int64_t m, n, k;
  };
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const std::string type = DTypeName(dtype);
    for (const auto& [m, n, k] : {Case{1027, 9, 12}, Case{3, 1029, 12}, Case{4, 9, 1030},
                                  Case{1025, 1026, 3}, Case{2, 1031, 1033}}) {
      SCOPED_TRACE(type + " " + Dims(Shape{m, k, n}));
      Values feeds = {Random(dtype, Shape{m, k}, random), Random(dtype, Shape{k, n}, random),
                      Random(dtype, Shape{n}, random),
                      Random(DType::kFloat32, Shape{m, n}, random)};
      const std::string inputs = "(" + Declared("a", feeds[0].tensor()) + ", " +
                                 Declared("b", feeds[1].tensor()) + ", " +
                                 Declared("bias", feeds[2].tensor()) + ", " +
                                 Declared("addend", feeds[3].tensor()) + ") => ";
      // In float32 the bias is widened, and sums of a thousand terms may be made in parts.
      Compare(inputs + "(y) { y = ai.caesura.FusedMatMul <dtype = 1> (a, b, bias, addend) }", feeds,
              3e-5);
      const double once = dtype == DType::kFloat16 ? 1e-3 : 8e-3;  // rounded once
      Compare(inputs + "(y) { y = ai.caesura.FusedMatMul (a, b, bias) }", feeds, once);
    }
  }
}

// 1 + 2^-12 needs 12 bits after the point, of which TF32 keeps 10.
TEST_F(CudaProducts, RoundToTf32OnlyWhereAskedTo) {
  const Values feeds = {Tensor::Of<float>(Shape{64, 64}, std::vector<float>(4096, 1 + 0x1p-12f)),
                        Tensor::Of<float>(Shape{64, 64}, std::vector<float>(4096, 1))};
  for (const bool tf32 : {false, true}) {
    CudaOptions options = Options();
    options.tf32 = tf32;
    const auto plan =
        PlanOf(GraphOf("(float[64, 64] x, float[64, 64] w) => (y) { y = MatMul (x, w) }"), feeds,
               {}, {Provider(options), MakeCpuProvider()});
    ASSERT_NE(plan, nullptr);
    ExecutionState state(plan);
    Result<Values> got = Finish(state, feeds);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    EXPECT_EQ((*got)[0].tensor().data<float>()[0], tf32 ? 64 : 64 * (1 + 0x1p-12f));
  }
}

TEST_F(CudaProducts, RowsOfABatchAreRowsOfOneProduct) {
  std::mt19937 random(6);
  Values feeds = {Random(DType::kFloat32, Shape{3, 5, 7, 8}, random),
                  Random(DType::kFloat32, Shape{8, 4}, random)};
  const uint64_t before = Operations("cublasLtMatmul");
  Compare("(float[3, 5, 7, 8] x, float[8, 4] w) => (y) { y = MatMul (x, w) }", feeds, 1e-6);
  if (!OnGpu()) {
    EXPECT_EQ(Operations("cublasLtMatmul") - before, 1u);
  }
}

// Scores of 513 classes: products write and read rows with gaps, and the loss's gradient overwrites
// them.
TEST_F(CudaProducts, LargeScoresHaveGapsBetweenRows) {
  std::mt19937 random(7);
  constexpr int64_t kRows = 600, kClasses = 513;
  Tensor labels = Tensor::Zeros(DType::kInt64, Shape{kRows});
  for (int64_t i = 0; i < kRows; ++i) labels.data<int64_t>()[i] = random() % kClasses;
  const Values feeds = {Random(DType::kFloat32, Shape{2, kRows / 2, 8}, random),
                        Random(DType::kFloat32, Shape{8, kClasses}, random), labels,
                        Tensor::Of<float>(Shape{}, {2})};
  const auto plan = Compare(R"((float[2, 300, 8] x, float[8, 513] w, int64[600] labels, float d)
      => (loss, dx) <int64[2] rows = {600, 513}, int64[3] all = {2, 300, 513}> {
    scores = MatMul (x, w)
    r = Reshape (scores, rows)
    loss, , lse = ai.caesura.SoftmaxCrossEntropyLossTraining (r, labels)
    g = ai.caesura.SoftmaxCrossEntropyLossGrad (d, r, labels, , lse)
    dr = Reshape (g, all)
    dx = ai.caesura.FusedMatMul <transB = 1> (dr, w)
  })",
                            feeds, 1e-5);
  ASSERT_NE(plan, nullptr);
  int gaps = 0;
  std::set<uint32_t> buffers;
  for (const PlannedValue& value : plan->values()) {
    if (value.layout.dense()) continue;
    ++gaps;
    buffers.insert(value.buffer);
    EXPECT_EQ(value.layout.strides[value.shape.rank() - 2], 544);
  }
  EXPECT_EQ(gaps, 4);             // scores, r, g, dr
  EXPECT_EQ(buffers.size(), 1u);  // in the same memory
}

// Nobody outside sees gaps.
TEST_F(CudaProducts, OutputsAreDense) {
  std::mt19937 random(8);
  const Values feeds = {Random(DType::kFloat32, Shape{600, 8}, random),
                        Random(DType::kFloat32, Shape{8, 513}, random)};
  const auto plan = Compare(
      "(float[600, 8] x, float[8, 513] w) => (y, z) { y = MatMul (x, w) "
      "z = Neg (y) }",
      feeds, 1e-5);
  for (const PlannedValue& value : plan->values()) EXPECT_TRUE(value.layout.dense());
}

}  // namespace
}  // namespace caesura::testing
