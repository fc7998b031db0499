// SPDX-License-Identifier: Apache-2.0
// Steps in bfloat16 and float16 beside the same steps in float32, and what a scaled loss does when
// gradients overflow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/temporary_folder.h"
#include "tests/training/real_step.h"

namespace caesura::testing {
namespace {

struct PrecisionCase {
  const char* name;
  RealModel (*make)();
  DType precision;
  // The bound of the norm of a gradient's error over the gradient's norm. A rounding to bfloat16 is
  // off by up to 2^-9 and to float16 by 2^-12; a gradient passes a few dozen of them here, sums
  // cancel, and max-pooling takes another element where rounding makes two equal.
  double tolerance;
};
void PrintTo(const PrecisionCase& c, std::ostream* out) { *out << c.name; }

double Norm(const Tensor& a, const Tensor* minus = nullptr) {
  double sum = 0;
  for (int64_t i = 0; i < a.elements(); ++i) {
    const double d = a.data<float>()[i] - (minus == nullptr ? 0.0 : minus->data<float>()[i]);
    sum += d * d;
  }
  return std::sqrt(sum);
}

// float16's gradients of this size overflow at the usual first scale, and the first updates would
// be skipped.
RealModel Make(const PrecisionCase& c) {
  RealModel real = c.make();
  real.options.step.loss_scaling.initial_scale = 256;
  return real;
}

class MixedPrecisionStep : public ::testing::TestWithParam<PrecisionCase> {};

TEST_P(MixedPrecisionStep, GradientsAreNearThoseOfFloat32) {
  RealModel real = Make(GetParam());
  real.options.step.keep_gradients = true;
  const auto wide = SessionOf(real);
  real.options.step.precision = GetParam().precision;
  const auto mixed = SessionOf(real);
  const double loss = wide->Step(real.batches[0]).value();
  EXPECT_NEAR(mixed->Step(real.batches[0]).value(), loss, 0.01 * loss);
  ASSERT_EQ(mixed->runs().gradients().size(), wide->runs().gradients().size());
  double largest = 0;
  for (const RuntimeValue& gradient : wide->runs().gradients())
    largest = std::max(largest, Norm(gradient.tensor()));
  for (size_t i = 0; i < wide->runs().gradients().size(); ++i) {
    const Tensor &found = mixed->runs().gradients()[i].tensor(),
                 &want = wide->runs().gradients()[i].tensor();
    ASSERT_EQ(found.dtype(), DType::kFloat32);
    // Some gradients are zero but for rounding: biases ahead of a norm, biases of keys.
    EXPECT_LE(Norm(found, &want), GetParam().tolerance * std::max(Norm(want), 0.1 * largest))
        << wide->parameters().Names()[i];
  }
}

TEST_P(MixedPrecisionStep, LossFollows) {
  RealModel real = Make(GetParam());
  const auto wide = SessionOf(real);
  real.options.step.precision = GetParam().precision;
  const auto mixed = SessionOf(real);
  double first = 0, last = 0;
  for (int i = 0; i < 20; ++i) {
    const double want = wide->Step(real.batches[i % 2]).value(),
                 found = mixed->Step(real.batches[i % 2]).value();
    EXPECT_NEAR(found, want, 0.02 * want) << i;
    if (i == 0) first = found;
    last = found;
  }
  EXPECT_LT(last, first);
  EXPECT_NEAR(mixed->Evaluate(real.batches[0]).value().loss,
              wide->Evaluate(real.batches[0]).value().loss, 0.05 * first);
  for (const std::string& name : mixed->parameters().Names()) {
    EXPECT_EQ(mixed->parameters().Get(name).value().dtype(), DType::kFloat32);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, MixedPrecisionStep,
    ::testing::Values(PrecisionCase{"DigitsBFloat16", Digits, DType::kBFloat16, 0.06},
                      PrecisionCase{"CharGptBFloat16", CharGpt, DType::kBFloat16, 0.06},
                      PrecisionCase{"DigitsFloat16", Digits, DType::kFloat16, 0.03},
                      PrecisionCase{"CharGptFloat16", CharGpt, DType::kFloat16, 0.01}),
    [](const auto& info) { return info.param.name; });

Values AllParametersOf(const TrainingSession& session) {
  Values out;
  for (const std::string& name : session.parameters().Names())
    out.push_back(session.parameters().Get(name)->Clone().value());
  return out;
}

RealModel Scaled(float scale) {
  RealModel real = CharGpt();
  real.options.step.precision = DType::kFloat16;
  real.options.step.loss_scaling = {.initial_scale = scale, .growth_interval = 2};
  return real;
}

TEST(LossScaling, AnOverflowSkipsTheUpdateAndLowersTheScale) {
  const RealModel real = Scaled(std::ldexp(1.0f, 30));
  const auto session = SessionOf(real);
  const Values before = AllParametersOf(*session);
  ASSERT_TRUE(session->Step(real.batches[0]).ok());
  EXPECT_EQ(session->progress().updates, 0);
  EXPECT_EQ(session->progress().loss_scale(), std::ldexp(1.0, 29));
  EXPECT_TRUE(SameBits(AllParametersOf(*session), before));
  int steps = 1;
  for (; session->progress().updates == 0 && steps < 40; ++steps)
    ASSERT_TRUE(session->Step(real.batches[0]).ok());
  ASSERT_EQ(session->progress().updates, 1);
  EXPECT_EQ(session->progress().loss_scale(), std::ldexp(1.0, 30 - (steps - 1)));
  EXPECT_FALSE(SameBits(AllParametersOf(*session), before));
  // The first update is that of a session that had begun with this scale: skipped steps leave
  // no trace.
  const auto other = SessionOf(Scaled(std::ldexp(1.0f, 30 - (steps - 1))));
  ASSERT_TRUE(other->Step(real.batches[0]).ok());
  EXPECT_TRUE(SameBits(AllParametersOf(*session), AllParametersOf(*other)));
}

TEST(LossScaling, GoodStepsRaiseTheScale) {
  const RealModel real = Scaled(8);
  const auto session = SessionOf(real);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(session->Step(real.batches[i % 2]).ok());
  EXPECT_EQ(session->progress().updates, 4);
  EXPECT_EQ(session->progress().loss_scale(), 32);
}

TEST(LossScaling, GradientsThatAreNeverFiniteAreAnError) {
  const RealModel real = Scaled(1.0f / (1 << 23));
  const auto session = SessionOf(real);
  Tensor broken = session->parameters().Get("head")->Clone().value();
  broken.data<float>()[0] = NAN;
  ASSERT_TRUE(session->parameters().Set("head", broken).ok());
  ASSERT_TRUE(session->Step(real.batches[0]).ok());
  const auto loss = session->Step(real.batches[0]);
  ASSERT_FALSE(loss.ok());
  EXPECT_THAT(loss.status().message(), ::testing::HasSubstr("not finite"));
}

TEST(LossScaling, IsPartOfTheCheckpoint) {
  TemporaryFolder folder;
  const RealModel real = Scaled(8);
  const auto session = SessionOf(real), again = SessionOf(real);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(session->Step(real.batches[i % 2]).ok());
  ASSERT_TRUE(session->Save(folder.path("c")).ok());
  ASSERT_TRUE(again->Restore(folder.path("c")).ok());
  EXPECT_EQ(again->progress().loss_scale(), 16);
  for (const auto* s : {&session, &again}) ASSERT_TRUE((*s)->Step(real.batches[1]).ok());
  EXPECT_EQ(again->progress().loss_scale(), 32);
  EXPECT_TRUE(SameBits(AllParametersOf(*session), AllParametersOf(*again)));
}

TEST(LossScaling, NeedsAllGradientsBeforeTheFirstUpdate) {
  RealModel real = Scaled(8);
  real.options.step.clip_norm = 0;
  real.options.step.commit = CommitMode::kEagerConsume;
  EXPECT_EQ(TrainingSession::Create(std::move(real.model), real.options).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(Precision, OtherTypesAreRefused) {
  RealModel real = Digits();
  real.options.step.precision = DType::kFloat64;
  EXPECT_EQ(TrainingSession::Create(std::move(real.model), real.options).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace caesura::testing
