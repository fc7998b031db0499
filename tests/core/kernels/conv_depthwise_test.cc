// SPDX-License-Identifier: Apache-2.0
// Convolutions with a group for each channel, in all three directions: float32, which has kernels
// of its own for them, against float64, which goes through matrix products.
#include <gtest/gtest.h>

#include <cmath>

#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"
#include "training/kernels/training_ops.h"

namespace caesura::testing {
namespace {

struct Case {
  const char* name;
  std::vector<int64_t> input, kernel, strides, dilations,
      pads;  // pads: those in front, then those after
  int64_t channels = 3, multiplier = 1;
};

std::string Numbers(const std::vector<int64_t>& numbers) {
  std::string out;
  for (int64_t n : numbers) out += (out.empty() ? "" : ", ") + std::to_string(n);
  return out;
}

template <typename T>
Tensor Wave(const std::vector<int64_t>& dims, double step) {
  const Shape shape(dims);
  std::vector<T> numbers(shape.elements());
  for (size_t i = 0; i < numbers.size(); ++i) {  // sums that do not cancel
    numbers[i] = static_cast<T>(static_cast<float>(0.3 + std::sin(step * i + step)));
  }
  return Tensor::Of<T>(shape, numbers);
}

// Y, dX, dW and dB.
template <typename T>
Values Results(const Case& c, int threads) {
  const std::string type = std::is_same_v<T, float> ? "float" : "double";
  const size_t rank = c.input.size();
  std::vector<int64_t> x = {2, c.channels}, w = {c.channels * c.multiplier, 1},
                       y = {2, c.channels * c.multiplier};
  std::string any;
  for (size_t d = 0; d < rank; ++d) {
    const int64_t extent = (c.kernel[d] - 1) * c.dilations[d] + 1;
    x.push_back(c.input[d]);
    w.push_back(c.kernel[d]);
    y.push_back((c.input[d] + c.pads[d] + c.pads[rank + d] - extent) / c.strides[d] + 1);
    any += ", S" + std::to_string(d);
  }
  const std::string attributes = " <group = " + std::to_string(c.channels) + ", strides = [" +
                                 Numbers(c.strides) + "], dilations = [" + Numbers(c.dilations) +
                                 "], pads = [" + Numbers(c.pads) + "]> ";
  const std::string body =
      "(" + type + "[" + Numbers(x) + "] x, " + type + "[" + Numbers(w) + "] w, " + type + "[" +
      Numbers({y[1]}) + "] b, " + type + "[" + Numbers(y) + "] dy) => (" + type + "[N, C" + any +
      "] y, " + type + "[N, D" + any + "] dx, " + type + "[O, I" + any + "] dw, " + type +
      "[O] db) { y = Conv" + attributes + "(x, w, b) dx, dw, db = ai.caesura.ConvGrad" +
      attributes + "(dy, x, w) }";
  const Values feeds = {Wave<T>(x, 0.7), Wave<T>(w, 0.3), Wave<T>({y[1]}, 0.2), Wave<T>(y, 1.1)};
  PlanOptions options;
  options.threads = threads;
  return RunPlan(PlanOf(GraphOf(body), feeds, options, {MakeCpuProvider(RegisterTrainingKernels)}),
                 feeds);
}

class ConvDepthwiseTest : public ::testing::TestWithParam<Case> {};

TEST_P(ConvDepthwiseTest, IsNearFloat64) {
  const Values exact = Results<double>(GetParam(), 1);
  const Values one = Results<float>(GetParam(), 1), three = Results<float>(GetParam(), 3);
  for (size_t o = 0; o < exact.size(); ++o) {
    const Tensor &want = exact[o].tensor(), &got = one[o].tensor();
    ASSERT_EQ(want.shape(), got.shape()) << o;
    double largest = 0;
    for (int64_t i = 0; i < want.elements(); ++i)
      largest = std::max(largest, std::fabs(want.data<double>()[i]));
    for (int64_t i = 0; i < want.elements(); ++i) {
      ASSERT_NEAR(want.data<double>()[i], got.data<float>()[i], 2e-6 * largest)
          << "output " << o << " at " << i;
    }
    EXPECT_TRUE(SameBits(one[o], three[o])) << "output " << o;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ConvDepthwiseTest,
    ::testing::Values(
        Case{"Plain", {9, 11}, {3, 3}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
        Case{"Same", {14, 14}, {7, 7}, {1, 1}, {1, 1}, {3, 3, 3, 3}},
        Case{"Wide", {5, 150}, {3, 5}, {1, 1}, {1, 1}, {1, 2, 1, 2}},
        Case{"Strided", {15, 34}, {3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}},
        Case{"StridedWithoutPads", {8, 8}, {2, 2}, {2, 2}, {1, 1}, {0, 0, 0, 0}},
        Case{"StepsOverInputs", {16, 17}, {2, 1}, {3, 4}, {1, 1}, {0, 0, 0, 0}},
        Case{"Dilated", {20, 20}, {3, 3}, {1, 1}, {2, 3}, {2, 3, 2, 3}},
        Case{"DilatedAndStrided", {21, 19}, {3, 4}, {2, 3}, {3, 2}, {4, 1, 2, 5}},
        Case{"Lopsided", {7, 9}, {4, 10}, {1, 1}, {1, 1}, {3, 0, 0, 9}},
        Case{"OnePixel", {1, 1}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
        Case{"TwoOutputsAChannel", {10, 10}, {3, 3}, {2, 1}, {1, 1}, {1, 1, 1, 1}, 4, 2},
        Case{"Line", {37}, {4}, {1}, {1}, {3, 0}, 5},
        Case{"StridedLine", {40}, {9}, {4}, {2}, {1, 6}, 2, 3}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace caesura::testing
