// SPDX-License-Identifier: Apache-2.0
// Reductions against plain loops in double, over every set of axes; empty sets, NaN, precision and
// threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernel_case.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using Floats = std::vector<float>;
using Ints = std::vector<int64_t>;

Tensor Waves(Shape shape) {
  std::vector<float> values(shape.elements());
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i)) + 0.5f;
  return Tensor::Of<float>(std::move(shape), values);
}

Result<std::vector<RuntimeValue>> RunReduction(KernelCase node, int threads = 1) {
  node.threads = threads;
  return node.Run();
}
Floats Reduced(const char* op, const Tensor& x, Ints axes, int threads = 1) {
  return RunReduction(KernelCase(op, {x, IntVector(axes)}, {{"keepdims", int64_t{0}}}), threads)
      .value()[0]
      .tensor()
      .ToVector<float>();
}

struct Accumulated {
  double sum = 0, squares = 0, absolutes = 0, exponentials = 0, largest = -INFINITY,
         smallest = INFINITY;
  int64_t count = 0;
};

// The inputs of each output, in row-major order of the kept axes.
std::vector<Accumulated> ByLoops(const Tensor& x, const std::vector<bool>& mask) {
  const Shape& shape = x.shape();
  int64_t outputs = 1;
  for (int a = 0; a < shape.rank(); ++a) outputs *= mask[a] ? 1 : shape[a];
  std::vector<Accumulated> out(outputs);
  for (int64_t i = 0; i < x.elements(); ++i) {
    int64_t rest = i, place = 0, step = 1;
    for (int a = shape.rank() - 1; a >= 0; --a) {
      if (!mask[a]) {
        place += rest % shape[a] * step;
        step *= shape[a];
      }
      rest /= shape[a];
    }
    const double value = x.data<float>()[i];
    Accumulated& at = out[place];
    at.sum += value;
    at.squares += value * value;
    at.absolutes += std::abs(value);
    at.exponentials += std::exp(value);
    at.largest = std::max(at.largest, value);
    at.smallest = std::min(at.smallest, value);
    ++at.count;
  }
  return out;
}

TEST(Reduction, EqualsLoopsOverEverySetOfAxes) {
  for (const Shape& shape :
       {Shape{3, 5}, Shape{2, 3, 4, 5}, Shape{40, 300}, Shape{2, 70, 3, 20}, Shape{5, 1, 6}}) {
    const Tensor x = Waves(shape);
    for (int bits = 1; bits < 1 << shape.rank(); ++bits) {
      std::vector<bool> mask;
      Ints axes;
      for (int a = 0; a < shape.rank(); ++a) {
        mask.push_back((bits >> a & 1) != 0);
        if (mask[a]) axes.push_back(a);
      }
      const std::vector<Accumulated> expected = ByLoops(x, mask);
      const Floats sum = Reduced("ReduceSum", x, axes, 2), mean = Reduced("ReduceMean", x, axes),
                   norm = Reduced("ReduceL2", x, axes), one = Reduced("ReduceL1", x, axes),
                   max = Reduced("ReduceMax", x, axes, 2), min = Reduced("ReduceMin", x, axes),
                   log = Reduced("ReduceLogSumExp", x, axes, 3);
      ASSERT_EQ(sum.size(), expected.size());
      for (size_t i = 0; i < sum.size(); ++i) {
        const Accumulated& e = expected[i];
        ASSERT_NEAR(sum[i], e.sum, 1e-6 * (1 + e.absolutes))
            << shape.ToString() << " bits " << bits;
        ASSERT_NEAR(mean[i], e.sum / static_cast<double>(e.count), 1e-5);
        ASSERT_NEAR(norm[i], std::sqrt(e.squares), 1e-4);
        ASSERT_NEAR(one[i], e.absolutes, 1e-3);
        ASSERT_NEAR(log[i], std::log(e.exponentials), 1e-5);
        ASSERT_EQ(max[i], e.largest);
        ASSERT_EQ(min[i], e.smallest);
      }
    }
  }
}

TEST(Reduction, GivesTheSameWithAnyThreads) {
  const Tensor x = Waves({700, 300});
  for (const char* op : {"ReduceSum", "ReduceLogSumExp", "ReduceProd"}) {
    for (const Ints& axes : {Ints{0}, Ints{1}, Ints{0, 1}}) {
      EXPECT_EQ(Reduced(op, x, axes, 1), Reduced(op, x, axes, 7)) << op;
    }
  }
}

TEST(Reduction, KeepsSumsOfManyExact) {
  std::vector<float> values(3000000, 0.1f);
  const Tensor x = Tensor::Of<float>({3000000}, values);
  EXPECT_FLOAT_EQ(Reduced("ReduceSum", x, {})[0],
                  static_cast<float>(3000000 * static_cast<double>(0.1f)));
}

TEST(Reduction, TakesEmptySets) {
  const Tensor x = Tensor::Zeros(DType::kFloat32, {1, 0});
  EXPECT_THAT(Reduced("ReduceSum", x, {1}), ElementsAre(0));
  EXPECT_THAT(Reduced("ReduceProd", x, {1}), ElementsAre(1));
  EXPECT_THAT(Reduced("ReduceMax", x, {1}), ElementsAre(-kInfinity));
  EXPECT_THAT(Reduced("ReduceMin", x, {1}), ElementsAre(kInfinity));
  EXPECT_THAT(Reduced("ReduceLogSumExp", x, {1}), ElementsAre(-kInfinity));
  EXPECT_THAT(Reduced("ReduceLogSum", x, {1}), ElementsAre(-kInfinity));
  EXPECT_TRUE(std::isnan(Reduced("ReduceMean", x, {1})[0]));
  EXPECT_THAT(Reduced("ReduceSum", x, {0}), ElementsAre());
}

TEST(Reduction, ReducesNothingWhenAsked) {
  const Tensor x = Tensor::Of<float>({3}, {1, -2, 3});
  const KernelCase node("ReduceSumSquare", {x}, {{"noop_with_empty_axes", int64_t{1}}});
  EXPECT_THAT(RunReduction(node).value()[0].tensor().ToVector<float>(), ElementsAre(1, 4, 9));
}

TEST(Reduction, LetsNaNWin) {
  Tensor x = Waves({20, 30});
  x.data<float>()[45] = kNaN;
  EXPECT_TRUE(std::isnan(Reduced("ReduceMax", x, {0, 1})[0]));
  EXPECT_TRUE(std::isnan(Reduced("ReduceMin", x, {0})[15]));
  EXPECT_TRUE(std::isnan(Reduced("ReduceMax", x, {1})[1]));
  const auto top =
      RunReduction(KernelCase("TopK", {Tensor::Of<float>({4}, {1, kNaN, 3, kNaN}), IntVector({3})},
                              {}, "", 2))
          .value();
  EXPECT_THAT(top[1].tensor().ToVector<int64_t>(), ElementsAre(1, 3, 2));
  EXPECT_THAT(RunReduction(KernelCase("ArgMin", {Tensor::Of<float>({3}, {1, kNaN, 0})}))
                  .value()[0]
                  .tensor()
                  .ToVector<int64_t>(),
              ElementsAre(1));
}

TEST(Reduction, WrapsIntegersAround) {
  const Tensor x = Tensor::Of<int32_t>({2}, {2147483647, 1});
  EXPECT_THAT(RunReduction(KernelCase("ReduceSum", {x})).value()[0].tensor().ToVector<int32_t>(),
              ElementsAre(-2147483648));
  EXPECT_THAT(RunReduction(KernelCase("ReduceMean", {Tensor::Of<int32_t>({2}, {-3, 0})}))
                  .value()[0]
                  .tensor()
                  .ToVector<int32_t>(),
              ElementsAre(-1));
}

TEST(Scan, RunsBothWays) {
  const Tensor x = Tensor::Of<float>({4}, {1, 2, 3, 4});
  auto scan = [&](const char* op, int64_t exclusive, int64_t reverse) {
    const AttributeMap attributes = {{"exclusive", exclusive}, {"reverse", reverse}};
    return RunReduction(KernelCase(op, {x, Tensor::Scalar<int64_t>(-1)}, attributes))
        .value()[0]
        .tensor()
        .ToVector<float>();
  };
  EXPECT_THAT(scan("CumSum", 0, 0), ElementsAre(1, 3, 6, 10));
  EXPECT_THAT(scan("CumSum", 1, 1), ElementsAre(9, 7, 4, 0));
  EXPECT_THAT(scan("CumProd", 1, 0), ElementsAre(1, 1, 2, 6));
  EXPECT_THAT(scan("CumProd", 0, 1), ElementsAre(24, 24, 12, 4));
}

TEST(Scan, RefusesWrongK) {
  const Tensor x = Tensor::Of<float>({4}, {1, 2, 3, 4});
  for (int64_t k : {int64_t{5}, int64_t{-1}}) {
    EXPECT_EQ(RunReduction(KernelCase("TopK", {x, IntVector({k})}, {}, "", 2)).status().code(),
              StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace caesura
