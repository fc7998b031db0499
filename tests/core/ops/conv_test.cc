// SPDX-License-Identifier: Apache-2.0
// Convolutions and pools against plain loops in double. Convolutions with a group for each channel,
// in all three directions: float32, which has kernels of its own for them, against float64, which
// goes through matrix products.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/kernel_case.h"

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
  return RunPlan(PlanOf(GraphOf(body), feeds, options, {MakeCpuProvider()}), feeds);
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

// A window over one image of [channels, height, width], as ONNX defines it.
struct Window {
  int64_t kernel[2], strides[2] = {1, 1}, dilations[2] = {1, 1};
  int64_t pads[4] = {0, 0, 0, 0};  // top, left, bottom, right
  int64_t Outputs(int64_t input, int d) const {
    return (input + pads[d] + pads[2 + d] - (kernel[d] - 1) * dilations[d] - 1) / strides[d] + 1;
  }
  int64_t At(int64_t output, int64_t offset, int d) const {
    return output * strides[d] - pads[d] + offset * dilations[d];
  }
  AttributeMap Attributes() const {
    using Ints = std::vector<int64_t>;
    return {{"kernel_shape", Ints(kernel, kernel + 2)},
            {"strides", Ints(strides, strides + 2)},
            {"dilations", Ints(dilations, dilations + 2)},
            {"pads", Ints(pads, pads + 4)}};
  }
  // visit(output, input or -1 outside of the image, offset within the window)
  template <typename F>
  void ForEach(int64_t height, int64_t width, F visit) const {
    const int64_t rows = Outputs(height, 0), columns = Outputs(width, 1);
    for (int64_t o = 0; o < rows * columns; ++o) {
      for (int64_t k = 0; k < kernel[0] * kernel[1]; ++k) {
        const int64_t y = At(o / columns, k / kernel[1], 0), x = At(o % columns, k % kernel[1], 1);
        const bool inside = y >= 0 && y < height && x >= 0 && x < width;
        visit(o, inside ? y * width + x : -1, k);
      }
    }
  }
};

const Window kWindows[] = {{{3, 3}},
                           {{3, 2}, {2, 1}, {1, 1}, {1, 0, 0, 1}},
                           {{2, 3}, {1, 2}, {2, 1}, {2, 1, 0, 2}},
                           {{1, 1}, {3, 2}}};

std::vector<double> RunConv(const std::string& op, std::vector<RuntimeValue> inputs,
                            AttributeMap attributes) {
  KernelCase node(op, std::move(inputs), std::move(attributes));
  return node.Run().value()[0].tensor().ToVector<double>();
}

void ExpectNear(const std::vector<double>& got, const std::vector<double>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  // In float32, sums of at most 36 products of numbers up to 1.3 round so.
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-5) << i;
}

TEST(Conv, EqualsLoops) {
  constexpr int64_t kHeight = 7, kWidth = 6, kPixels = kHeight * kWidth;
  for (const Window& window : kWindows) {
    for (const int64_t groups : {1, 2}) {  // 4 channels to 6
      const int64_t inner = 4 / groups, taps = window.kernel[0] * window.kernel[1];
      const Tensor x = Wave<float>({1, 4, kHeight, kWidth}, 0.7);
      const Tensor w = Wave<float>({6, inner, window.kernel[0], window.kernel[1]}, 0.3);
      const Tensor b = Wave<float>({6}, 0.2);
      const int64_t area = window.Outputs(kHeight, 0) * window.Outputs(kWidth, 1);
      std::vector<double> wanted(6 * area);
      for (int64_t c = 0; c < 6; ++c) {
        for (int64_t o = 0; o < area; ++o) wanted[c * area + o] = b.data<float>()[c];
        for (int64_t i = 0; i < inner; ++i) {
          const float* image = x.data<float>() + (c / (6 / groups) * inner + i) * kPixels;
          const float* weights = w.data<float>() + (c * inner + i) * taps;
          window.ForEach(kHeight, kWidth, [&](int64_t o, int64_t pixel, int64_t k) {
            if (pixel >= 0) wanted[c * area + o] += static_cast<double>(image[pixel]) * weights[k];
          });
        }
      }
      AttributeMap attributes = window.Attributes();
      attributes["group"] = groups;
      ExpectNear(RunConv("Conv", {x, w, b}, attributes), wanted);
    }
  }
}

// The input's gradient of a convolution is a transposed convolution: each input is spread.
TEST(ConvTranspose, SpreadsEachInput) {
  for (const Window& window : kWindows) {
    // The image that the window would read, and one number for each of its outputs.
    constexpr int64_t kHeight = 7, kWidth = 6;
    const int64_t rows = window.Outputs(kHeight, 0), columns = window.Outputs(kWidth, 1);
    const Tensor x = Wave<float>({1, 1, rows, columns}, 0.7);
    const Tensor w = Wave<float>({1, 1, window.kernel[0], window.kernel[1]}, 0.3);
    std::vector<double> wanted(kHeight * kWidth);
    window.ForEach(kHeight, kWidth, [&](int64_t o, int64_t pixel, int64_t k) {
      if (pixel >= 0) wanted[pixel] += static_cast<double>(x.data<float>()[o]) * w.data<float>()[k];
    });
    AttributeMap attributes = window.Attributes();
    // Pixels at the end that no window reaches.
    std::vector<int64_t> unread;
    for (int d = 0; d < 2; ++d) {
      const int64_t size = d == 0 ? kHeight : kWidth;
      unread.push_back((size + window.pads[d] + window.pads[2 + d] -
                        (window.kernel[d] - 1) * window.dilations[d] - 1) %
                       window.strides[d]);
    }
    attributes["output_padding"] = unread;
    ExpectNear(RunConv("ConvTranspose", {x, w}, attributes), wanted);
  }
}

TEST(Pools, EqualLoops) {
  constexpr int64_t kHeight = 7, kWidth = 6;
  const Tensor x = Wave<float>({1, 1, kHeight, kWidth}, 0.7);
  for (const Window& window : kWindows) {
    const int64_t area = window.Outputs(kHeight, 0) * window.Outputs(kWidth, 1);
    std::vector<double> most(area, -1e9), sums(area), counts(area), squares(area);
    window.ForEach(kHeight, kWidth, [&](int64_t o, int64_t pixel, int64_t) {
      if (pixel < 0) return;
      const double value = x.data<float>()[pixel];
      most[o] = std::max(most[o], value);
      sums[o] += value;
      counts[o] += 1;
      squares[o] += value * value;
    });
    std::vector<double> means(area), whole(area), norms(area);
    for (int64_t o = 0; o < area; ++o) {
      means[o] = sums[o] / counts[o];
      whole[o] = sums[o] / static_cast<double>(window.kernel[0] * window.kernel[1]);
      norms[o] = std::sqrt(squares[o]);
    }
    AttributeMap attributes = window.Attributes();
    ExpectNear(RunConv("MaxPool", {x}, attributes), most);
    ExpectNear(RunConv("LpPool", {x}, attributes), norms);
    ExpectNear(RunConv("AveragePool", {x}, attributes), means);
    attributes["count_include_pad"] = int64_t{1};
    ExpectNear(RunConv("AveragePool", {x}, attributes), whole);
  }
}

// Half of the pixels that are missing go in front; an odd one goes to the end (SAME_UPPER) or to
// the front (SAME_LOWER).
TEST(Conv, PadsToTheSameSize) {
  const Tensor x = Tensor::Of<float>({1, 1, 4}, {1, 2, 3, 4}),
               w = Tensor::Of<float>({1, 1, 2}, {1, 10});
  const auto with = [&](const char* pad) {
    return RunConv("Conv", {x, w}, {{"auto_pad", Text(pad)}});
  };
  EXPECT_THAT(with("SAME_UPPER"), ::testing::ElementsAre(21, 32, 43, 4));
  EXPECT_THAT(with("SAME_LOWER"), ::testing::ElementsAre(10, 21, 32, 43));
  EXPECT_THAT(with("VALID"), ::testing::ElementsAre(21, 32, 43));
}

TEST(Conv, RefusesWhatDoesNotFit) {
  const auto refused = [](const Shape& x, const Shape& w, AttributeMap attributes) {
    KernelCase node("Conv", {Ramp(x), Ramp(w)}, std::move(attributes));
    const auto out = node.Run();
    EXPECT_FALSE(out.ok()) << x.ToString() << " " << w.ToString();
    return out.ok() ? "" : out.status().message();
  };
  const Shape image{1, 4, 5, 5};
  EXPECT_NE(refused(image, Shape{6, 3, 3, 3}, {}), "");  // 4 channels, weights of 3
  EXPECT_NE(refused(image, Shape{6, 2, 3, 3}, {{"group", int64_t{3}}}), "");
  EXPECT_NE(refused(image, Shape{6, 4, 3}, {}), "");
  EXPECT_NE(refused(image, Shape{6, 4, 6, 6}, {}), "");  // larger than the image
  EXPECT_NE(refused(image, Shape{6, 4, 3, 3}, {{"strides", std::vector<int64_t>{0, 1}}}), "");
  EXPECT_NE(refused(image, Shape{6, 4, 3, 3}, {{"pads", std::vector<int64_t>{1, 1}}}), "");
}

}  // namespace
}  // namespace caesura::testing
