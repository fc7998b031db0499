// SPDX-License-Identifier: Apache-2.0
// Pools and their gradients on the device give the CPU's numbers, and the same bits from run to
// run.
#include <cmath>

#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/ops/cuda/half_numbers.h"
#include "tests/core/ops/cuda/kernel_feeds.h"
#include "tests/core/providers/cuda/standin_cuda.h"

namespace caesura::testing {
namespace {

struct PoolCase {
  Shape x, y;
  std::string attributes;
};

const std::vector<PoolCase>& PoolCases() {
  static const auto* cases = new std::vector<PoolCase>{
      {{2, 3, 6, 5}, {2, 3, 3, 2}, "kernel_shape = [2, 2], strides = [2, 2]"},
      {{2, 3, 7, 6}, {2, 3, 4, 3}, "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"},
      {{1, 2, 6, 7}, {1, 2, 4, 5}, "kernel_shape = [2, 2], dilations = [2, 2]"},
      {{1, 2, 7, 7}, {1, 2, 3, 2}, "kernel_shape = [3, 2], strides = [3, 4], ceil_mode = 1"},
      {{1, 2, 5, 4}, {1, 2, 5, 4}, "kernel_shape = [3, 2], auto_pad = \"SAME_LOWER\""},
      {{2, 2, 9}, {2, 2, 5}, "kernel_shape = [3], strides = [2], pads = [2, 1]"},
      // The first windows see padding only.
      {{1, 1, 3}, {1, 1, 5}, "kernel_shape = [2], strides = [2], pads = [5, 2]"},
      {{1, 2, 4, 3, 5}, {1, 2, 3, 2, 3}, "kernel_shape = [2, 2, 3]"}};
  return *cases;
}

class CudaPool : public StandinCuda {
 protected:
  static Values RunOn(const ProviderList& providers, const std::string& text, const Values& feeds) {
    auto plan = TryPlan(GraphOf(text), feeds, {}, providers);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    if (!plan.ok()) return {};
    for (const PlanStep& step : (*plan)->steps()) {
      if (step.kind != PlanStep::Kind::kCompute) continue;
      EXPECT_EQ(step.provider->device(), providers[0]->device()) << step.node->op_type();
    }
    ExecutionState state(*plan);
    auto got = Finish(state, feeds);
    EXPECT_TRUE(got.ok()) << got.status().ToString();
    return got.ok() ? *got : Values();
  }
  // The first `exact` results are bit for bit the CPU's.
  void Compare(const std::string& text, const Values& feeds, size_t exact, DType dtype) {
    SCOPED_TRACE(text);
    if (cuda_ == nullptr) cuda_ = Provider();
    const auto cpu = MakeCpuProvider();
    const Values wanted = RunOn({cpu}, text, feeds), got = RunOn({cuda_, cpu}, text, feeds);
    ASSERT_EQ(got.size(), wanted.size());
    EXPECT_TRUE(SameBits(RunOn({cuda_, cpu}, text, feeds), got)) << "other bits in another run";
    for (size_t i = 0; i < exact; ++i) EXPECT_TRUE(SameBits(got[i], wanted[i])) << "output " << i;
    const double tolerance = dtype == DType::kFloat64   ? 1e-14
                             : dtype == DType::kFloat32 ? 1e-6
                                                        : RoundingsOf(dtype, 2);
    ExpectClose(Values(got.begin() + exact, got.end()),
                Values(wanted.begin() + exact, wanted.end()), tolerance);
  }
  void CompareMax(const PoolCase& c, Tensor x, const std::string& more = "") {
    std::mt19937 random(3);
    const DType dtype = x.dtype();
    const Tensor dy = Random(dtype, c.y, random);
    const std::string how = " <" + c.attributes + more + "> ";
    Compare("(" + Declared("x", x) + ", " + Declared("dy", dy) +
                ") => (y, indices, alone, dx) { y, indices = MaxPool" + how +
                "(x) alone = MaxPool" + how + "(x) dx = ai.caesura.MaxPoolGrad" + how + "(dy, x) }",
            {x, dy}, 4, dtype);
  }
  void CompareAverage(const PoolCase& c, DType dtype, const std::string& more) {
    std::mt19937 random(4);
    const Tensor x = Random(dtype, c.x, random), dy = Random(dtype, c.y, random);
    const std::string how = " <" + c.attributes + more + "> ";
    Compare("(" + Declared("x", x) + ", " + Declared("dy", dy) + ") => (y, dx) { y = AveragePool" +
                how + "(x) dx = ai.caesura.AveragePoolGrad" + how + "(dy, x) }",
            {x, dy}, 0, dtype);
  }
  void CompareGlobal(Tensor x, bool mean = true) {
    std::mt19937 random(5);
    Shape y = x.shape();
    for (int d = 2; d < y.rank(); ++d) y[d] = 1;
    const Tensor dy = Random(x.dtype(), y, random);
    Compare("(" + Declared("x", x) + ", " + Declared("dy", dy) + ") => (most, dx" +
                (mean ? ", mean" : "") + ") { most = GlobalMaxPool (x) " +
                (mean ? "mean = GlobalAveragePool (x) " : "") +
                "dx = ai.caesura.GlobalMaxPoolGrad (dy, x) }",
            {x, dy}, 2, x.dtype());
  }

  static Tensor RandomOf(DType dtype, const Shape& shape) {
    std::mt19937 random(2);
    return Random(dtype, shape, random);
  }

 private:
  std::shared_ptr<const ExecutionProvider> cuda_;
};

constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

TEST_F(CudaPool, MaximaAndTheirGradients) {
  for (const PoolCase& c : PoolCases()) CompareMax(c, RandomOf(DType::kFloat32, c.x));
  for (const DType dtype : kFloats) CompareMax(PoolCases()[1], RandomOf(dtype, PoolCases()[1].x));
  CompareMax(PoolCases()[1], RandomOf(DType::kFloat32, PoolCases()[1].x), ", storage_order = 1");
}

TEST_F(CudaPool, MaximaOfBytes) {
  const PoolCase& c = PoolCases()[1];
  for (const DType dtype : {DType::kInt8, DType::kUInt8}) {
    const Tensor x = Tensor::Zeros(dtype, c.x);
    for (int64_t i = 0; i < x.elements(); ++i) x.data<char>()[i] = static_cast<char>(i * 37 % 256);
    Compare("(" + Declared("x", x) + ") => (y, indices) { y, indices = MaxPool <" + c.attributes +
                "> (x) }",
            {x}, 2, dtype);
  }
}

// The first maximum counts; the last NaN; and windows in which all is -infinity have a place.
TEST_F(CudaPool, TiesAndNumbersThatAreNone) {
  for (const PoolCase& c : {PoolCases()[1], PoolCases()[2]}) {
    Tensor x = Tensor::Zeros(DType::kFloat32, c.x);
    for (int64_t i = 0; i < x.elements(); ++i)
      x.data<float>()[i] = i % 11 == 3 ? NAN : i < 15 ? -INFINITY : static_cast<float>(i % 3);
    CompareMax(c, x);
    CompareGlobal(x, false);
  }
}

TEST_F(CudaPool, AveragesAndTheirGradients) {
  for (const PoolCase& c : PoolCases()) {
    CompareAverage(c, DType::kFloat32, "");
    CompareAverage(c, DType::kFloat32, ", count_include_pad = 1");
  }
  for (const DType dtype : kFloats) CompareAverage(PoolCases()[1], dtype, "");
}

TEST_F(CudaPool, GlobalOnes) {
  for (const DType dtype : kFloats) CompareGlobal(RandomOf(dtype, Shape{2, 3, 7, 7}));
  CompareGlobal(RandomOf(DType::kFloat32, Shape{2, 1, 300}));  // several warps an image
  CompareGlobal(RandomOf(DType::kFloat32, Shape{3, 2}));
}

}  // namespace
}  // namespace caesura::testing
