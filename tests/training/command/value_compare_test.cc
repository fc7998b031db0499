// SPDX-License-Identifier: Apache-2.0
#include "training/command/value_compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <limits>

namespace caesura::command {
namespace {

using ::testing::HasSubstr;

std::string Compare(const RuntimeValue& got, const RuntimeValue& want) {
  return Difference(got, want, {}, "out");
}
Tensor Floats(std::vector<float> values) {
  const auto count = static_cast<int64_t>(values.size());
  return Tensor::Of<float>({count}, values);
}

TEST(ValueCompareTest, WithinTolerance) {
  EXPECT_EQ(Compare(Floats({1.0009f, 0}), Floats({1, 5e-8f})), "");
  EXPECT_EQ(Compare(Floats({1.002f, 1}), Floats({1, 1})),
            "out: 1 of 2 differ, e.g. 1.00199997 for 1");
  EXPECT_EQ(Compare(Tensor::Zeros(DType::kFloat32, {0, 2}), Tensor::Zeros(DType::kFloat32, {0, 2})),
            "");
}

TEST(ValueCompareTest, NanEqualsNanAndInfinityItself) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  EXPECT_EQ(Compare(Floats({nan, inf, -inf}), Floats({nan, inf, -inf})), "");
  EXPECT_NE(Compare(Floats({inf}), Floats({-inf})), "");
  EXPECT_NE(Compare(Floats({1}), Floats({inf})), "");
  EXPECT_NE(Compare(Floats({inf}), Floats({1})), "");
  EXPECT_NE(Compare(Floats({nan}), Floats({1})), "");
}

TEST(ValueCompareTest, ShapesAndDTypesMustAgree) {
  EXPECT_THAT(Compare(Floats({1, 2}), Floats({1})), HasSubstr("shape [2], expected [1]"));
  EXPECT_THAT(Compare(Tensor::Scalar(1.0), Tensor::Scalar(1.f)),
              HasSubstr("dtype float64, expected float32"));
}

TEST(ValueCompareTest, EveryDType) {
  using C = std::complex<float>;
  EXPECT_EQ(Compare(Tensor::Scalar(C(1, 2)), Tensor::Scalar(C(1, 2.0005f))), "");
  EXPECT_NE(Compare(Tensor::Scalar(C(1, 2)), Tensor::Scalar(C(1, 2.1f))), "");
  EXPECT_EQ(Compare(Tensor::Scalar<BFloat16>(2.f), Tensor::Scalar<BFloat16>(2.f)), "");
  EXPECT_NE(Compare(Tensor::Scalar(true), Tensor::Scalar(false)), "");
  EXPECT_NE(Compare(Tensor::Scalar<std::string>("a"), Tensor::Scalar<std::string>("b")), "");
  const auto bits = [](DType dtype, uint8_t byte) {
    Tensor out = Tensor::Zeros(dtype, {});
    *out.data<uint8_t>() = byte;
    return out;
  };
  EXPECT_EQ(Compare(bits(DType::kFloat8E4M3FN, 0x7f), bits(DType::kFloat8E4M3FN, 0xff)),
            "");  // both NaN
  EXPECT_THAT(Compare(bits(DType::kFloat8E8M0, 128), bits(DType::kFloat8E8M0, 127)),
              HasSubstr("e.g. 2 for 1"));
  EXPECT_THAT(Compare(bits(DType::kInt4, 0xff), bits(DType::kInt4, 1)), HasSubstr("e.g. -1 for 1"));
}

TEST(ValueCompareTest, SequencesAndNothing) {
  const auto sequence = RuntimeValue::Sequence({Floats({1}), Floats({2})});
  EXPECT_EQ(Compare(sequence, sequence), "");
  EXPECT_THAT(Compare(sequence, RuntimeValue::Sequence({Floats({1}), Floats({3})})),
              HasSubstr("out[1]: 1 of 1"));
  EXPECT_THAT(Compare(sequence, RuntimeValue::Sequence({Floats({1})})),
              HasSubstr("a sequence of 1"));
  EXPECT_NE(Compare(sequence, Floats({1})), "");
  EXPECT_NE(Compare(Floats({1}), sequence), "");
  EXPECT_EQ(Compare({}, {}), "");
  EXPECT_NE(Compare({}, Floats({1})), "");
  EXPECT_NE(Compare(Floats({1}), {}), "");
}

}  // namespace
}  // namespace caesura::command
