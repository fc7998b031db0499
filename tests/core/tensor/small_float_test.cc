// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>

namespace caesura {
namespace {

// Every half that is a number survives the way through float and back.
TEST(SmallFloatTest, EveryFloat16RoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = Float16BitsToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Float16BitsToFloat(FloatToFloat16Bits(value))));
    } else {
      EXPECT_EQ(FloatToFloat16Bits(value), bits) << value;
    }
  }
}

TEST(SmallFloatTest, Float16RoundsToNearestEven) {
  // 2049 lies between 2048 and 2050, the even mantissa is 2048; 2051 lies between 2050 and 2052:
  // 2052.
  EXPECT_EQ(float(Float16(2049.0f)), 2048.0f);
  EXPECT_EQ(float(Float16(2051.0f)), 2052.0f);
  EXPECT_EQ(float(Float16(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(float(Float16(65520.0f))));
  EXPECT_EQ(float(Float16(5.9604644775390625e-8f)),
            5.9604644775390625e-8f);  // 2^-24, the smallest subnormal
  EXPECT_EQ(float(Float16(2.9e-8f)), 0.0f);
}

TEST(SmallFloatTest, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(float(BFloat16(1.0f)), 1.0f);
  EXPECT_EQ(float(BFloat16(257.0f)), 256.0f);  // step 2 at 256
  EXPECT_EQ(float(BFloat16(259.0f)), 260.0f);
  EXPECT_TRUE(std::isnan(float(BFloat16(std::nanf("")))));
}

class SmallFloatFormatTest : public ::testing::TestWithParam<SmallFloatFormat> {};

TEST_P(SmallFloatFormatTest, EveryPatternRoundTrips) {
  const SmallFloatFormat format = GetParam();
  const int patterns = 1 << (1 + format.exponent_bits + format.mantissa_bits);
  for (int bits = 0; bits < patterns; ++bits) {
    const float value = SmallFloatToFloat(static_cast<uint8_t>(bits), format);
    const uint8_t back = FloatToSmallFloat(value, format, /*saturate=*/false);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(SmallFloatToFloat(back, format))) << bits;
    } else {
      EXPECT_EQ(back, bits) << value;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SmallFloatFormatTest,
                         ::testing::Values(kE4M3FN, kE4M3FNUZ, kE5M2, kE5M2FNUZ, kE2M1));

TEST(SmallFloatTest, SaturationAndOverflow) {
  EXPECT_EQ(SmallFloatToFloat(FloatToSmallFloat(1e6f, kE4M3FN, true), kE4M3FN), 448.0f);
  EXPECT_TRUE(std::isnan(SmallFloatToFloat(FloatToSmallFloat(1e6f, kE4M3FN, false), kE4M3FN)));
  EXPECT_EQ(SmallFloatToFloat(FloatToSmallFloat(1e6f, kE5M2, true), kE5M2), 57344.0f);
  EXPECT_TRUE(std::isinf(SmallFloatToFloat(FloatToSmallFloat(1e6f, kE5M2, false), kE5M2)));
  EXPECT_EQ(SmallFloatToFloat(FloatToSmallFloat(-9.0f, kE2M1, true), kE2M1), -6.0f);
}

}  // namespace
}  // namespace caesura
