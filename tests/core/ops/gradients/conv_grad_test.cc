// SPDX-License-Identifier: Apache-2.0
// ConvGrad against plain loops in double; it, ConvTransposeGrad, DeformConvGrad and the gradients
// of pooling by hand.
#include <cmath>

#include "tests/core/ops/gradients/training_case.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

TEST(ConvGrad, OfOneChannelByHand) {
  const Tensor x = Tensor::Of<double>({1, 1, 4}, {1, 2, 3, 4}),
               w = Tensor::Of<double>({1, 1, 2}, {1, 10});
  ExpectInEveryFloat("ConvGrad", {Tensor::Of<double>({1, 1, 3}, {1, 2, 3}), x, w}, {},
                     {{1, 10 + 2, 20 + 3, 30}, {1 + 4 + 9, 2 + 6 + 12}, {6}});
  ExpectInEveryFloat("ConvGrad", {Tensor::Of<double>({1, 1, 2}, {1, 2}), x, w},
                     {{"strides", std::vector<int64_t>{2}}},
                     {{1, 10, 2, 20}, {1 + 2 * 3, 2 + 2 * 4}, {3}});
}

// X [2, 4, 5, 6] * W [6, 2, 3, 2] -> Y [2, 6, 3, 5] in 2 groups, with strides 2 and 1, dilations 1
// and 2, pads 1 and 0 before, 2 and 1 after.
TrainingOutputs ConvGradByLoops(const Tensor& dy, const Tensor& x, const Tensor& w) {
  TrainingOutputs out = {std::vector<double>(x.elements()), std::vector<double>(w.elements()),
                         std::vector<double>(6)};
  for (int64_t at = 0; at < dy.elements(); ++at) {
    const int64_t n = at / 90, o = at / 15 % 6, oy = at / 5 % 3, ox = at % 5;
    out[2][o] += dy.data<double>()[at];
    for (int64_t tap = 0; tap < 12; ++tap) {
      const int64_t channel = o / 3 * 2 + tap / 6, y = 2 * oy + tap / 2 % 3 - 1,
                    column = ox + 2 * (tap % 2);
      if (y < 0 || y >= 5 || column >= 6) continue;
      const int64_t from = ((n * 4 + channel) * 5 + y) * 6 + column;
      out[0][from] += dy.data<double>()[at] * w.data<double>()[o * 12 + tap];
      out[1][o * 12 + tap] += dy.data<double>()[at] * x.data<double>()[from];
    }
  }
  return out;
}

TEST(ConvGrad, EqualsPlainLoops) {
  const Tensor dy = RandomTensor({2, 6, 3, 5}, 1), x = RandomTensor({2, 4, 5, 6}, 2),
               w = RandomTensor({6, 2, 3, 2}, 3);
  const AttributeMap attributes = {{"strides", std::vector<int64_t>{2, 1}},
                                   {"dilations", std::vector<int64_t>{1, 2}},
                                   {"pads", std::vector<int64_t>{1, 0, 2, 1}},
                                   {"group", int64_t{2}}};
  const TrainingOutputs expected = ConvGradByLoops(dy, x, w);
  // Sums of up to 30 products; float has 24 bits.
  for (const auto& [dtype, tolerance] :
       {std::pair(DType::kFloat64, 1e-13), std::pair(DType::kFloat32, 3e-5)}) {
    const TrainingOutputs out =
        RunTrainingKernel("ConvGrad", {InDType(dy, dtype), InDType(x, dtype), InDType(w, dtype)},
                          attributes, 3)
            .value();
    for (int i = 0; i < 3; ++i) EXPECT_THAT(out[i], AreNear(expected[i], tolerance));
  }
}

// With a pad of 1 before, Y is the last four of (w0 x0, w1 x0, w2 x0 + w0 x1, w1 x1, w2 x1).
TEST(ConvTransposeGrad, OfOneChannelByHand) {
  const Tensor x = Tensor::Of<double>({1, 1, 2}, {1, 2}),
               w = Tensor::Of<double>({1, 1, 3}, {1, 4, 16}),
               dy = Tensor::Of<double>({1, 1, 4}, {1, 2, 3, 4});
  ExpectInEveryFloat("ConvTransposeGrad", {dy, x, w},
                     {{"strides", std::vector<int64_t>{2}}, {"pads", std::vector<int64_t>{1, 0}}},
                     {{4 + 2 * 16, 2 + 3 * 4 + 4 * 16}, {2 * 2, 1 + 2 * 3, 2 + 2 * 4}, {10}});
}

TEST(ConvGrad, RefusesGradientsOfAnotherShape) {
  const Tensor x = Tensor::Of<double>({1, 1, 4}, {1, 2, 3, 4}),
               w = Tensor::Of<double>({1, 1, 2}, {1, 10});
  EXPECT_THAT(WhyRefused("ConvGrad", {x, x, w}, {}, 3),
              HasSubstr("dY of shape [1, 1, 3] expected, got [1, 1, 4]"));
  EXPECT_THAT(WhyRefused("ConvTransposeGrad", {x, x, w}, {}, 3),
              HasSubstr("dY of shape [1, 1, 5] expected, got [1, 1, 4]"));
}

// A 1 x 1 kernel that samples one place, (1/4, 1/2), of an image of 2 x 2: its weights are 3/8 for
// the upper row and 1/8 for the lower one. Y = W mask sample; dY W = 8.
TEST(DeformConvGrad, OfOneSampleByHand) {
  const std::vector<RuntimeValue> inputs = {Tensor::Of<double>({1, 1, 1, 1}, {4}),
                                            Tensor::Of<double>({1, 1, 2, 2}, {1, 2, 3, 5}),
                                            Tensor::Of<double>({1, 1, 1, 1}, {2}),
                                            Tensor::Of<double>({1, 2, 1, 1}, {0.25, 0.5}),
                                            {},
                                            Tensor::Of<double>({1, 1, 1, 1}, {0.5})};
  const AttributeMap attributes = {{"strides", std::vector<int64_t>{2, 2}}};
  const double sample = 0.375 * (1 + 2) + 0.125 * (3 + 5);
  ExpectInEveryFloat("DeformConvGrad", inputs, attributes,
                     {{1.5, 1.5, 0.5, 0.5},  // 4 of the weights
                      {2 * sample},
                      {4 * (4 - 1.5), 4 * (0.75 * (2 - 1) + 0.25 * (5 - 3))},
                      {4},
                      {8 * sample}});
  EXPECT_THAT(WhyRefused("DeformConvGrad", {inputs.begin(), inputs.begin() + 4}, attributes, 5),
              HasSubstr("dmask is wanted where there is no mask"));
}

}  // namespace
}  // namespace caesura
