// SPDX-License-Identifier: Apache-2.0
// Normalizations of rows, channels and neighbours against plain loops in double; numbers far from
// zero, refusals. Softmaxes and losses: softmax_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/kernel_case.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

using ::testing::Each;
using Doubles = std::vector<double>;
using Floats = std::vector<float>;

// Multiples of 1/64 below 2, moved by `shift`: floats hold them up to a shift of 2^17.
Tensor Uneven(Shape shape, float shift = 0) {
  Floats values(shape.elements());
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = shift + static_cast<float>(static_cast<int>(i * i * 37 % 251) - 125) / 64;
  return Tensor::Of<float>(std::move(shape), values);
}

Result<std::vector<RuntimeValue>> RunNorm(KernelCase node) { return node.Run(); }
Doubles NormOf(KernelCase node) {
  return RunNorm(std::move(node)).value()[0].tensor().ToVector<double>();
}
void ExpectNoNorm(KernelCase node) {
  const Status status = RunNorm(node).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << node.op_type << status.ToString();
}

// float32's sums of some 60 terms below 2, divided by numbers near 1.
constexpr double kFloatSums = 1e-5;
void ExpectDoubles(const Doubles& actual, const Doubles& expected, double tolerance = kFloatSums) {
  EXPECT_THAT(actual, ::testing::Pointwise(::testing::DoubleNear(tolerance), expected));
}

struct Moments {
  double mean = 0, variance = 0;
};

// Over the elements of x for which runs[i] == run.
Moments MomentsOf(const Doubles& x, const std::vector<int64_t>& runs, int64_t run) {
  Moments m;
  double count = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (runs[i] != run) continue;
    m.mean += x[i];
    ++count;
  }
  m.mean /= count;
  for (size_t i = 0; i < x.size(); ++i)
    m.variance += runs[i] == run ? (x[i] - m.mean) * (x[i] - m.mean) / count : 0;
  return m;
}

// x less its run's mean, over its deviation, and then times scale[i] and plus bias[i].
template <typename Run, typename Parameter>
Doubles Standardized(const Tensor& x, double epsilon, Run run_of, Parameter scale, Parameter bias) {
  const Doubles values = x.ToVector<double>();
  std::vector<int64_t> runs;
  for (size_t i = 0; i < values.size(); ++i) runs.push_back(run_of(static_cast<int64_t>(i)));
  Doubles out;
  for (size_t i = 0; i < values.size(); ++i) {
    const Moments m = MomentsOf(values, runs, runs[i]);
    out.push_back((values[i] - m.mean) / std::sqrt(m.variance + epsilon) * scale(i) + bias(i));
  }
  return out;
}

using Lookup = std::function<double(int64_t)>;

TEST(LayerNorm, OfAnyTrailingAxes) {
  const Tensor x = Uneven({3, 4, 5});
  const struct {
    int64_t axis, size;
    Shape scale;
    int64_t period, repeats;  // element i of a row takes scale[i / repeats % period]
  } cases[] = {{-1, 5, {5}, 5, 1},        {2, 5, {1, 1, 1}, 1, 1}, {1, 20, {4, 5}, 20, 1},
               {-2, 20, {5}, 5, 1},       {1, 20, {4, 1}, 4, 5},   {0, 60, {3, 4, 5}, 60, 1},
               {-3, 60, {3, 1, 1}, 3, 20}};
  for (const auto& c : cases) {
    const Tensor scale = Uneven(c.scale, 1), bias = Uneven(c.scale, -3);
    const auto at = [&](const Tensor& from) {
      return Lookup(
          [&](int64_t i) { return from.data<float>()[i % c.size / c.repeats % c.period]; });
    };
    const auto out = RunNorm(KernelCase("LayerNormalization", {x, scale, bias},
                                        {{"axis", c.axis}, {"epsilon", 0.25f}}, "", 3))
                         .value();
    const auto row = [&](int64_t i) { return i / c.size; };
    ExpectDoubles(out[0].tensor().ToVector<double>(),
                  Standardized(x, 0.25, row, at(scale), at(bias)));
    const Doubles rows = Standardized(x, 0.25, row, Lookup([](int64_t) { return 1.0; }),
                                      Lookup([](int64_t) { return 0.0; }));
    const Doubles means = out[1].tensor().ToVector<double>(),
                  inverse = out[2].tensor().ToVector<double>();
    ASSERT_EQ(static_cast<int64_t>(means.size()), 60 / c.size);
    for (int64_t i = 0; i < 60; ++i)
      ASSERT_NEAR((x.data<float>()[i] - means[i / c.size]) * inverse[i / c.size], rows[i],
                  kFloatSums);
  }
}

// E[x^2] - E[x]^2 in float32 would lose all digits of a variance near 1: squares are rounded to
// whole numbers there.
TEST(LayerNorm, KeepsItsDigitsFarFromZero) {
  const Tensor near = Uneven({4, 50}), far = Uneven({4, 50}, 4096), one = FloatVector({1}),
               none = FloatVector({0});
  const Doubles expected = NormOf(KernelCase("LayerNormalization", {near, one}));
  // Sums of 50 such numbers are exact; the mean is off by 1/4096 at most, half of float32's step.
  ExpectDoubles(NormOf(KernelCase("LayerNormalization", {far, one})), expected, 0.0005);
  ExpectDoubles(NormOf(KernelCase(
                    "GroupNormalization",
                    {far.Reshaped({1, 4, 50}), FloatVector(Floats(4, 1)), FloatVector(Floats(4))},
                    {{"num_groups", int64_t{4}}})),
                expected, 0.0005);
}

TEST(RmsNorm, DividesByTheRootOfTheMeanSquare) {
  const Tensor x = Uneven({3, 4, 5}), scale = Uneven({4, 5}, 1);
  Doubles expected;
  for (int64_t i = 0; i < 60; ++i) {
    double squares = 0;
    for (int64_t k = 0; k < 20; ++k) squares += std::pow(x.data<float>()[i / 20 * 20 + k], 2);
    expected.push_back(x.data<float>()[i] / std::sqrt(squares / 20 + 0.5) *
                       scale.data<float>()[i % 20]);
  }
  ExpectDoubles(
      NormOf(KernelCase("RMSNormalization", {x, scale}, {{"axis", int64_t{1}}, {"epsilon", 0.5f}})),
      expected);
}

TEST(RowNorms, RefuseParametersThatDoNotFit) {
  const Tensor x = Uneven({3, 4, 5}), five = Uneven({5});
  for (const char* op : {"LayerNormalization", "RMSNormalization"}) {
    ExpectNoNorm(KernelCase(op, {x, Uneven({4})}));
    ExpectNoNorm(KernelCase(op, {x, Uneven({1, 3, 4, 5})}));
    ExpectNoNorm(KernelCase(op, {x, five}, {{"axis", int64_t{3}}}));
    ExpectNoNorm(KernelCase(op, {x, five}, {{"axis", int64_t{-4}}}));
  }
}

TEST(ChannelNorms, OfGroupsAndInstances) {
  const Tensor x = Uneven({2, 6, 3, 2}), scale = Uneven({6}, 1), bias = Uneven({6}, -3);
  const auto channel = [](const Tensor& from, int64_t repeats = 1) {
    return Lookup([=](int64_t i) { return from.data<float>()[i / 6 % 6 / repeats]; });
  };
  for (const int64_t groups : {1, 2, 3, 6}) {
    const auto run = [&](int64_t i) { return i / (36 / groups); };
    const AttributeMap attributes = {{"num_groups", groups}, {"epsilon", 0.25f}};
    const Doubles expected = Standardized(x, 0.25, run, channel(scale), channel(bias));
    ExpectDoubles(NormOf(KernelCase("GroupNormalization", {x, scale, bias}, attributes)), expected);
    if (groups == 6)
      ExpectDoubles(
          NormOf(KernelCase("InstanceNormalization", {x, scale, bias}, {{"epsilon", 0.25f}})),
          expected);
    // Version 18 had a scale and a bias a group.
    const Tensor of_groups = Uneven({groups}, 1);
    KernelCase old("GroupNormalization", {x, of_groups, of_groups}, attributes);
    old.since_version = 18;
    ExpectDoubles(NormOf(old), Standardized(x, 0.25, run, channel(of_groups, 6 / groups),
                                            channel(of_groups, 6 / groups)));
  }
  for (const int64_t groups : {0, -1, 4})
    ExpectNoNorm(KernelCase("GroupNormalization", {x, scale, bias}, {{"num_groups", groups}}));
  ExpectNoNorm(KernelCase("InstanceNormalization", {x, Uneven({5}), bias}));
}

TEST(BatchNorm, TakesItsStatisticsOrTheBatchs) {
  for (const Shape& shape : {Shape{4, 3}, Shape{2, 3, 5, 2}}) {
    const int64_t inner = shape.Elements(2, shape.rank());
    const Tensor x = Uneven(shape), scale = Uneven({3}, 1), bias = Uneven({3}, -3),
                 mean = Uneven({3}, 0.5f), variance = FloatVector({0.5f, 1, 2});
    const auto channel = [&](const Tensor& from) {
      return Lookup([=](int64_t i) { return from.data<float>()[i / inner % 3]; });
    };
    const std::vector<RuntimeValue> inputs = {x, scale, bias, mean, variance};
    Doubles expected;
    for (int64_t i = 0; i < x.elements(); ++i) {
      expected.push_back((x.data<float>()[i] - channel(mean)(i)) /
                             std::sqrt(channel(variance)(i) + 0.25) * channel(scale)(i) +
                         channel(bias)(i));
    }
    ExpectDoubles(NormOf(KernelCase("BatchNormalization", inputs, {{"epsilon", 0.25f}})), expected);
    const auto out =
        RunNorm(KernelCase("BatchNormalization", inputs,
                           {{"epsilon", 0.25f}, {"momentum", 0.75f}, {"training_mode", int64_t{1}}},
                           "", 3))
            .value();
    std::vector<int64_t> runs;
    for (int64_t i = 0; i < x.elements(); ++i) runs.push_back(i / inner % 3);
    ExpectDoubles(
        out[0].tensor().ToVector<double>(),
        Standardized(x, 0.25, [&](int64_t i) { return runs[i]; }, channel(scale), channel(bias)));
    for (int64_t c = 0; c < 3; ++c) {
      const Moments m = MomentsOf(x.ToVector<double>(), runs, c);
      EXPECT_NEAR(out[1].tensor().data<float>()[c], 0.75 * mean.data<float>()[c] + 0.25 * m.mean,
                  kFloatSums);
      EXPECT_NEAR(out[2].tensor().data<float>()[c],
                  0.75 * variance.data<float>()[c] + 0.25 * m.variance, kFloatSums);
    }
    ExpectNoNorm(
        KernelCase("BatchNormalization", inputs, {}, "", 3));  // statistics without training_mode
    ExpectNoNorm(KernelCase("BatchNormalization", {x, Uneven({2}), bias, mean, variance}));
  }
}

TEST(LpNorm, DividesByTheNorm) {
  const Tensor x = Tensor::Of<float>({2, 3}, {3, 0, -1, 4, 0, 0});
  const auto norm = [&](int64_t p, int64_t axis) {
    return NormOf(KernelCase("LpNormalization", {x}, {{"p", p}, {"axis", axis}}));
  };
  // Column 1 is zeros, and stays so.
  ExpectDoubles(norm(2, 0), {0.6, 0, -1, 0.8, 0, 0});
  ExpectDoubles(norm(1, 0), {3.0 / 7, 0, -1, 4.0 / 7, 0, 0});
  ExpectDoubles(norm(1, -1), {0.75, 0, -0.25, 1, 0, 0});
  ExpectNoNorm(KernelCase("LpNormalization", {x}, {{"p", int64_t{3}}}));
  ExpectNoNorm(KernelCase("LpNormalization", {x}, {{"axis", int64_t{2}}}));
}

TEST(Lrn, DividesByNeighbouringChannels) {
  const Tensor x = Uneven({2, 5, 3});
  for (const int64_t size : {1, 3, 4, 20}) {
    Doubles expected;
    for (int64_t i = 0; i < 30; ++i) {
      const int64_t c = i / 3 % 5;
      double squares = 0;
      for (int64_t k = std::max<int64_t>(0, c - (size - 1) / 2);
           k <= std::min<int64_t>(4, c + size / 2); ++k)
        squares += std::pow(x.data<float>()[i + (k - c) * 3], 2);
      expected.push_back(x.data<float>()[i] /
                         std::pow(2 + 0.5 / static_cast<double>(size) * squares, 0.6));
    }
    ExpectDoubles(
        NormOf(KernelCase("LRN", {x},
                          {{"size", size}, {"alpha", 0.5f}, {"beta", 0.6f}, {"bias", 2.0f}})),
        expected);
  }
  for (const int64_t size : {0, -3}) ExpectNoNorm(KernelCase("LRN", {x}, {{"size", size}}));
}

TEST(MeanVariance, OfAnyAxes) {
  const Tensor x = Uneven({2, 3, 4, 2});
  const Lookup one = [](int64_t) { return 1.0; }, none = [](int64_t) { return 0.0; };
  ExpectDoubles(NormOf(KernelCase("MeanVarianceNormalization", {x})),
                Standardized(x, 0, [](int64_t i) { return i / 8 % 3; }, one, none));
  const AttributeMap inner = {{"axes", std::vector<int64_t>{1, -1}}};
  ExpectDoubles(NormOf(KernelCase("MeanVarianceNormalization", {x}, inner)),
                Standardized(x, 0, [](int64_t i) { return i / 24 * 4 + i / 2 % 4; }, one, none));
  // No deviation: zeros, not NaN.
  EXPECT_THAT(
      NormOf(KernelCase("MeanVarianceNormalization", {Tensor::Of<float>({1, 1, 1, 3}, {5, 5, 5})})),
      Each(0));
  ExpectNoNorm(
      KernelCase("MeanVarianceNormalization", {x}, {{"axes", std::vector<int64_t>{1, -3}}}));
}

}  // namespace
}  // namespace caesura
