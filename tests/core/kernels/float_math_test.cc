// SPDX-License-Identifier: Apache-2.0
// The float functions against <cmath> in double: on the instruction set of the build and on the
// machine's best one.
#include "core/kernels/simd/float_math.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/kernels/simd/arithmetic_type.h"
#include "core/kernels/simd/best_isa.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

// |got - want| in units of the last place of a float at `want`; 0 for equal specials, huge for
// unequal ones.
double UnitsOff(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : 1e9;
  const float nearest = static_cast<float>(want);
  if (std::isinf(nearest) || std::isinf(got)) return nearest == got ? 0 : 1e9;
  int exponent;
  std::frexp(nearest == 0 ? 1e-45f : nearest, &exponent);
  return std::fabs(got - want) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

// Floats of every magnitude within [low, high], and the special ones.
std::vector<float> Samples(float low, float high) {
  std::vector<float> out;
  auto keep = [&](float x) {
    if (!(x < low || x > high)) out.push_back(x);
  };
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 19997) {
    keep(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (float x :
       {0.0f, -0.0f, kInfinity, -kInfinity, std::nanf(""), 88.72283f, 88.72284f, -103.9f, 1.0f})
    keep(x);
  return out;
}

template <typename Fn, typename Reference>
void ExpectClose(Fn fn, Reference reference, double units, float low = -kInfinity,
                 float high = kInfinity) {
  const std::vector<float> x = Samples(low, high);
  std::vector<float> plain(x.size()), wide(x.size());
  for (size_t i = 0; i < x.size(); ++i) plain[i] = fn(x[i]);
  OnBestIsa([&] {
    for (size_t i = 0; i < x.size(); ++i) wide[i] = fn(x[i]);
  });
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = reference(static_cast<double>(x[i]));
    ASSERT_LE(UnitsOff(plain[i], want), units)
        << "at " << x[i] << ": " << plain[i] << ", expected " << want;
    ASSERT_LE(UnitsOff(wide[i], want), units)
        << "at " << x[i] << " on " << BestIsaName() << ": " << wide[i];
  }
}

double ExactSoftplus(double x) {
  return std::isnan(x) ? x : std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
}

TEST(FloatMath, Exp) {
  ExpectClose([](float x) { return math::Exp(x); }, [](double x) { return std::exp(x); }, 1.1);
}
TEST(FloatMath, Log) {
  ExpectClose([](float x) { return math::Log(x); }, [](double x) { return std::log(x); }, 1.1);
}
TEST(FloatMath, ExpMinusOne) {
  ExpectClose([](float x) { return math::ExpMinusOne(x); }, [](double x) { return std::expm1(x); },
              4);
}
TEST(FloatMath, Tanh) {
  ExpectClose([](float x) { return math::Tanh(x); }, [](double x) { return std::tanh(x); }, 2);
}
TEST(FloatMath, Erf) {
  ExpectClose([](float x) { return math::Erf(x); }, [](double x) { return std::erf(x); }, 3);
}
// The rounding of x^2/2 is as large as half a unit of it: 7 units of the result at |x| = 4.
TEST(FloatMath, NormalAt) {
  auto density = [](double x) { return std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI); };
  auto share = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  for (const auto& [bound, units] : {std::pair{1.0f, 6.0}, {4.0f, 16.0}, {12.9f, 100.0}}) {
    ExpectClose([](float x) { return math::NormalAt(x).density; }, density, units, -bound, bound);
    ExpectClose([](float x) { return math::NormalAt(x).share; }, share, units, -bound, bound);
  }
  ExpectClose([](float x) { return math::NormalAt(x).share; }, share, 4, 0);
  EXPECT_EQ(math::NormalAt(-13.1f).share, 0);
  EXPECT_EQ(math::NormalAt(-kInfinity).share, 0);
  EXPECT_EQ(math::NormalAt(kInfinity).density, 0);
}
TEST(FloatMath, Sigmoid) {
  auto exact = [](double x) { return 1 / (1 + std::exp(-x)); };
  ExpectClose([](float x) { return math::Sigmoid(x); }, exact, 3, -87.0f);
}
TEST(FloatMath, Softplus) {
  ExpectClose([](float x) { return math::Softplus(x); }, ExactSoftplus, 3);
}
TEST(FloatMath, TanhOfSoftplus) {
  auto exact = [](double x) { return std::tanh(ExactSoftplus(x)); };
  ExpectClose([](float x) { return math::TanhOfSoftplus(x); }, exact, 4, -80.0f);
}

TEST(FloatMath, SinCosOfTurns) {
  for (float turns = 0; turns <= 1; turns += 1.0f / 4096) {
    float sine, cosine;
    math::SinCosOfTurns(turns, &sine, &cosine);
    EXPECT_NEAR(sine, std::sin(2 * M_PI * turns), 2e-7);
    EXPECT_NEAR(cosine, std::cos(2 * M_PI * turns), 2e-7);
  }
}

TEST(ArithmeticType, Float16IsExactBothWays) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const float wide = WidenFloat16(half);
    const float expected = Float16BitsToFloat(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(wide) && std::isnan(WidenFloat16(NarrowFloat16(wide))));
      continue;
    }
    EXPECT_EQ(std::bit_cast<uint32_t>(wide), std::bit_cast<uint32_t>(expected)) << bits;
    EXPECT_EQ(NarrowFloat16(wide), half);
  }
}

TEST(ArithmeticType, NarrowingRoundsLikeTheScalarConversion) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 9973) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    EXPECT_EQ(NarrowFloat16(x), FloatToFloat16Bits(x)) << x;
  }
}

}  // namespace
}  // namespace caesura
