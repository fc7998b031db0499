// SPDX-License-Identifier: Apache-2.0
// HannWindow, HammingWindow, BlackmanWindow by their formulas; mel weights; refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tests/kernel_case.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;

Tensor WindowOf(KernelCase node) { return node.Run().value()[0].tensor(); }
void ExpectNoWindow(KernelCase node) {
  const Status status = node.Run().status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << node.op_type << status.ToString();
}

// a0 - a1 cos(2 pi k / n) + a2 cos(4 pi k / n)
void ExpectWindow(const char* op, double a0, double a1, double a2) {
  for (const int64_t size : {int64_t{2}, int64_t{7}, int64_t{8}}) {
    for (const int64_t periodic : {0, 1}) {
      const Tensor y = WindowOf(KernelCase(
          op, {Tensor::Scalar(size)},
          {{"periodic", periodic}, {"output_datatype", static_cast<int64_t>(DType::kFloat64)}}));
      ASSERT_EQ(y.shape(), Shape{size});
      for (int64_t k = 0; k < size; ++k) {
        const double angle = 2 * std::numbers::pi * static_cast<double>(k) /
                             static_cast<double>(periodic ? size : size - 1);
        EXPECT_NEAR(y.data<double>()[k], a0 - a1 * std::cos(angle) + a2 * std::cos(2 * angle),
                    1e-15)
            << op << " of " << size << " at " << k;
      }
    }
  }
}

TEST(Windows, FollowTheirFormulas) {
  ExpectWindow("HannWindow", 0.5, 0.5, 0);
  ExpectWindow("HammingWindow", 25.0 / 46, 21.0 / 46, 0);
  ExpectWindow("BlackmanWindow", 0.42, 0.5, 0.08);
  const Tensor y = WindowOf(KernelCase("HannWindow", {Tensor::Scalar<int32_t>(4)}));
  EXPECT_EQ(y.dtype(), DType::kFloat32);  // periodic by default
  EXPECT_THAT(y.ToVector<float>(), ElementsAre(0, 0.5f, 1, 0.5f));
}

TEST(Windows, OfOneNumberAndOfNone) {
  for (const char* op : {"HannWindow", "HammingWindow", "BlackmanWindow"}) {
    const AttributeMap symmetric = {{"periodic", int64_t{0}}};
    const Tensor one = WindowOf(KernelCase(op, {Tensor::Scalar<int64_t>(1)}, symmetric));
    ASSERT_EQ(one.shape(), Shape{1});
    EXPECT_TRUE(std::isnan(*one.data<float>())) << op;  // by 0 / 0, as the schema's function has it
    EXPECT_EQ(WindowOf(KernelCase(op, {Tensor::Scalar<int64_t>(0)})).shape(), Shape{0});
    ExpectNoWindow(KernelCase(op, {Tensor::Scalar<int64_t>(-1)}));
    ExpectNoWindow(KernelCase(op, {IntVector({2, 3})}));
    ExpectNoWindow(KernelCase(op, {Tensor::Scalar<int64_t>(int64_t{1} << 40)}));
  }
}

KernelCase MelCase(int64_t bands, int64_t length, int64_t rate, float low, float high) {
  return KernelCase("MelWeightMatrix",
                    {Tensor::Scalar(bands), Tensor::Scalar(length), Tensor::Scalar(rate),
                     Tensor::Scalar(low), Tensor::Scalar(high)});
}

TEST(Mel, BandsAreTrianglesThatRise) {
  const int64_t bands = 8, length = 512, bins = length / 2 + 1;
  const Tensor y = WindowOf(MelCase(bands, length, 16000, 100, 7000));
  ASSERT_EQ(y.shape(), (Shape{bins, bands}));
  int64_t last_peak = -1;
  for (int64_t band = 0; band < bands; ++band) {
    const auto at = [&](int64_t bin) { return y.data<float>()[bin * bands + band]; };
    int64_t peak = 0;
    for (int64_t bin = 1; bin < bins; ++bin) peak = at(bin) > at(peak) ? bin : peak;
    EXPECT_EQ(at(peak), 1) << band;
    EXPECT_GT(peak, last_peak);
    for (int64_t bin = 1; bin < bins; ++bin) {
      if (bin <= peak) EXPECT_GE(at(bin), at(bin - 1)) << band;
      else EXPECT_LE(at(bin), at(bin - 1)) << band;
    }
    EXPECT_EQ(at(bins - 1), 0);  // 8000 Hz is above the range
    last_peak = peak;
  }
}

// Edges are a tenth of 2595 log10(1 + 1000 / 700) = 1000 mel apart: 0, 333.3, 666.7 mel are 0,
// 240.9 and 564.8 Hz, and the bins below 17 times these over 4000: 0, 1, 2.
TEST(Mel, WeightsOfOneBand) {
  const Tensor y = WindowOf(MelCase(1, 16, 4000, 0, 1000));
  EXPECT_THAT(y.ToVector<float>(), ElementsAre(0, 1, 0, 0, 0, 0, 0, 0, 0));
}

TEST(Mel, RefusesRangesOutsideTheSpectrum) {
  ExpectNoWindow(MelCase(4, 16, 4000, -50, 1000));
  ExpectNoWindow(MelCase(4, 16, 4000, 0, 40000));
  ExpectNoWindow(MelCase(4, 16, 4000, 1000, 100));
  ExpectNoWindow(MelCase(4, 16, 4000, 0, kNaN));
  ExpectNoWindow(MelCase(0, 16, 4000, 0, 1000));
  ExpectNoWindow(MelCase(4, 0, 4000, 0, 1000));
  ExpectNoWindow(MelCase(4, 16, 0, 0, 1000));
}

}  // namespace
}  // namespace caesura
