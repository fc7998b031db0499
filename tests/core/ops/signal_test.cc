// SPDX-License-Identifier: Apache-2.0
// DFT and STFT against the naive sum, and back; refusals. Windows and mel weights: window_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>

#include "tests/kernel_case.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using Complexes = std::vector<std::complex<double>>;
using Doubles = std::vector<double>;

// Numbers are in float64: sums of some twenty terms below 1 differ by some 1e-15.
constexpr double kRounding = 1e-13;

Result<Tensor> TrySignal(KernelCase node) {
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> out, node.Run());
  return out[0].tensor();
}
Tensor SignalOf(KernelCase node) { return TrySignal(std::move(node)).value(); }
void ExpectNoSignal(KernelCase node) {
  const Status status = TrySignal(node).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << node.op_type << status.ToString();
}

Tensor Echoes(Shape shape) {
  Doubles values(shape.elements());
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(1.7 * static_cast<double>(i * i));
  return Tensor::Of<double>(std::move(shape), values);
}

// Number (outer, k, inner) of x [outer, count, inner, width].
std::complex<double> NumberAt(const Tensor& x, int64_t outer, int64_t k, int64_t inner) {
  const Shape& s = x.shape();
  const double* at = x.data<double>() + ((outer * s[1] + k) * s[2] + inner) * s[3];
  return {at[0], s[3] == 2 ? at[1] : 0.0};
}

// sum x[k] e^(-2 pi i k f / n) over k below n, where x ends in zeros; inverse: e^(+...), divided
// by n.
Complexes NaiveTransform(const Complexes& x, int64_t n, bool inverse = false) {
  Complexes out(n);
  for (int64_t f = 0; f < n; ++f) {
    for (int64_t k = 0; k < std::min<int64_t>(n, x.size()); ++k) {
      const double turn = static_cast<double>(k * f % n) / static_cast<double>(n);
      out[f] += x[k] * std::polar(1.0, (inverse ? 2 : -2) * std::numbers::pi * turn);
    }
    if (inverse) out[f] /= static_cast<double>(n);
  }
  return out;
}

// The transform of x [outer, count, inner, width] along axis 1.
void ExpectDft(const Tensor& x, int64_t n, bool inverse, bool onesided) {
  const Tensor y =
      SignalOf(KernelCase("DFT", {x, Tensor::Scalar<int64_t>(n), Tensor::Scalar<int64_t>(1)},
                          {{"inverse", int64_t{inverse}}, {"onesided", int64_t{onesided}}}));
  const Shape& s = x.shape();
  const int64_t bins = onesided ? n / 2 + 1 : n;
  ASSERT_EQ(y.shape(), (Shape{s[0], bins, s[2], 2}));
  for (int64_t line = 0; line < s[0] * s[2]; ++line) {
    Complexes signal;
    for (int64_t k = 0; k < s[1]; ++k) signal.push_back(NumberAt(x, line / s[2], k, line % s[2]));
    const Complexes expected = NaiveTransform(signal, n, inverse);
    for (int64_t f = 0; f < bins; ++f) {
      ASSERT_LE(std::abs(NumberAt(y, line / s[2], f, line % s[2]) - expected[f]), kRounding * 10)
          << "of " << s[1] << " numbers, length " << n << ", bin " << f;
    }
  }
}

TEST(Dft, EqualsTheNaiveSum) {
  for (const int64_t n : {1, 2, 3, 8, 12, 17}) {
    for (const int64_t width : {1, 2}) {
      ExpectDft(Echoes({2, n, 3, width}), n, false, false);
      ExpectDft(Echoes({2, n, 3, width}), n, true, false);
    }
    ExpectDft(Echoes({2, n, 1, 1}), n, false, true);
  }
}

TEST(Dft, CutsAndPadsToItsLength) {
  for (const int64_t n : {1, 4, 5, 16, 19}) {
    for (const bool inverse : {false, true}) ExpectDft(Echoes({1, 7, 2, 2}), n, inverse, false);
    ExpectDft(Echoes({1, 7, 2, 1}), n, false, true);
  }
}

TEST(Dft, TransformsTheAxisThatIsAskedFor) {
  const Tensor x = Echoes({3, 4, 5, 2});
  const auto along = [&](std::vector<RuntimeValue> axis, AttributeMap attributes = {},
                         int since = 20) {
    std::vector<RuntimeValue> inputs = {x, {}};
    inputs.insert(inputs.end(), axis.begin(), axis.end());
    KernelCase node("DFT", std::move(inputs), std::move(attributes));
    node.since_version = since;
    return SignalOf(std::move(node)).ToVector<double>();
  };
  const Doubles last = along({Tensor::Scalar<int64_t>(2)});
  EXPECT_EQ(along({}), last);  // by default the last one before the numbers' parts
  EXPECT_EQ(along({Tensor::Scalar<int64_t>(-2)}), last);
  // Before version 20 it was an attribute.
  EXPECT_EQ(along({}, {{"axis", int64_t{2}}}, 17), last);
  EXPECT_EQ(along({}, {}, 17), along({Tensor::Scalar<int64_t>(1)}));
  // The first axis: number (0, 1, 2) is a sum over (k, 1, 2).
  std::complex<double> sum;
  for (int64_t k = 0; k < 3; ++k) sum += NumberAt(x, k, 1, 2);
  const Doubles first = along({Tensor::Scalar<int64_t>(0)});
  EXPECT_NEAR(first[(1 * 5 + 2) * 2], sum.real(), kRounding);
  EXPECT_NEAR(first[(1 * 5 + 2) * 2 + 1], sum.imag(), kRounding);
}

TEST(Dft, ItsInverseGivesTheSignalBack) {
  for (const int64_t n : {1, 2, 3, 8, 12, 17}) {
    for (const bool onesided : {false, true}) {
      const Tensor x = Echoes({1, n, onesided ? 1 : 2});
      const Tensor length = Tensor::Scalar<int64_t>(n);
      const AttributeMap sides = {{"onesided", int64_t{onesided}}},
                         back = {{"onesided", int64_t{onesided}}, {"inverse", int64_t{1}}};
      const Tensor y =
          SignalOf(KernelCase("DFT", {SignalOf(KernelCase("DFT", {x}, sides)), length}, back));
      EXPECT_EQ(y.shape(), x.shape());
      EXPECT_THAT(y.ToVector<double>(),
                  ::testing::Pointwise(::testing::DoubleNear(kRounding), x.ToVector<double>()))
          << n;
    }
  }
}

TEST(Dft, TakesFloats) {
  const Tensor y = SignalOf(KernelCase("DFT", {Tensor::Of<float>({1, 4, 1}, {1, 2, 3, 4})}));
  EXPECT_THAT(y.ToVector<float>(), ElementsAre(10, 0, -2, 2, -2, 0, -2, -2));
}

TEST(Dft, RefusesWhatItCannotTransform) {
  const Tensor x = Echoes({2, 4, 1}), one = Tensor::Scalar<int64_t>(1);
  const auto number = [](int64_t n) { return Tensor::Scalar<int64_t>(n); };
  ExpectNoSignal(KernelCase("DFT", {Echoes({2, 4, 3})}));
  ExpectNoSignal(KernelCase("DFT", {Echoes({2})}));
  ExpectNoSignal(KernelCase("DFT", {x, number(0)}));
  ExpectNoSignal(KernelCase("DFT", {x, number(-4)}));
  ExpectNoSignal(KernelCase("DFT", {x, number(int64_t{1} << 40)}));
  for (const int64_t axis : {2, -1, 3, -4})
    ExpectNoSignal(KernelCase("DFT", {x, number(4), number(axis)}));
}

void ExpectStft(const Tensor& x, int64_t step, const Doubles& window, int64_t onesided) {
  const int64_t n = static_cast<int64_t>(window.size()), signal = x.shape()[1];
  const Tensor y = SignalOf(KernelCase(
      "STFT", {x, Tensor::Scalar(step), Tensor::Of<double>({n}, window), Tensor::Scalar(n)},
      {{"onesided", onesided}}));
  const int64_t frames = (signal - n) / step + 1, bins = onesided ? n / 2 + 1 : n;
  ASSERT_EQ(y.shape(), (Shape{x.shape()[0], frames, bins, 2}));
  for (int64_t line = 0; line < x.shape()[0] * frames; ++line) {
    Complexes frame;
    for (int64_t k = 0; k < n; ++k) {
      const int64_t at = line / frames * signal + line % frames * step + k, width = x.shape()[2];
      const double* number = x.data<double>() + at * width;
      frame.emplace_back(window[k] * number[0], width == 2 ? window[k] * number[1] : 0.0);
    }
    const Complexes expected = NaiveTransform(frame, n);
    for (int64_t f = 0; f < bins; ++f) {
      const double* number = y.data<double>() + (line * bins + f) * 2;
      ASSERT_NEAR(number[0], expected[f].real(), kRounding);
      ASSERT_NEAR(number[1], expected[f].imag(), kRounding);
    }
  }
}

TEST(Stft, TransformsWindowsOfTheSignal) {
  const Doubles window = {0.1, 0.5, 1, 0.5, 0.2};
  ExpectStft(Echoes({2, 16, 1}), 3, window, 1);
  ExpectStft(Echoes({2, 16, 1}), 5, window, 0);
  ExpectStft(Echoes({1, 12, 2}), 2, window, 0);
  ExpectStft(Echoes({1, 5, 1}), 9, window, 1);  // a step past the end: one frame
  ExpectStft(Echoes({1, 8, 1}), 4, {1, 1, 1, 1}, 1);
  // A cosine of one turn in four numbers: half of its energy is in bin 1, and the other half in
  // bin 3, which onesided leaves out.
  const Tensor wave = Tensor::Of<float>({1, 8, 1}, {1, 0, -1, 0, 1, 0, -1, 0});
  const Tensor y = SignalOf(
      KernelCase("STFT", {wave, Tensor::Scalar<int64_t>(4), {}, Tensor::Scalar<int64_t>(4)}));
  EXPECT_THAT(y.ToVector<float>(), ElementsAre(0, 0, 2, 0, 0, 0, 0, 0, 2, 0, 0, 0));
}

TEST(Stft, RefusesFramesThatDoNotFit) {
  const Tensor x = Echoes({1, 8, 1}), window = Echoes({4});
  const auto node = [](const Tensor& signal, int64_t step, RuntimeValue weights, int64_t frame) {
    return KernelCase("STFT",
                      {signal, Tensor::Scalar(step), std::move(weights), Tensor::Scalar(frame)});
  };
  ExpectNoSignal(node(x, 0, window, 4));
  ExpectNoSignal(node(x, -1, window, 4));
  ExpectNoSignal(node(x, 1, window, 5));
  ExpectNoSignal(node(x, 1, {}, 9));
  ExpectNoSignal(node(x, 1, {}, 0));
  ExpectNoSignal(node(Echoes({8, 1}), 1, window, 4));
  ExpectNoSignal(node(Echoes({1, 8, 3}), 1, window, 4));
  ExpectNoSignal(node(x, 1, FloatVector({1, 1, 1, 1}), 4));  // float32 beside float64
}

}  // namespace
}  // namespace caesura
