// SPDX-License-Identifier: Apache-2.0
// Softmax, LogSoftmax and Hardmax, and the losses of labels: plain loops in double, numbers that
// overflow, rows of -infinity, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "core/onnx/model_reader.h"
#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "tests/kernel_case.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;
using Doubles = std::vector<double>;
using Floats = std::vector<float>;
using Ints = std::vector<int64_t>;

// Some roundings of float32 at numbers below 10.
constexpr double kFloatSteps = 1e-5;

Result<Tensor> TrySoftmax(KernelCase node) {
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> out, node.Run());
  return out[0].tensor();
}
Floats SoftmaxOf(const char* op, const Tensor& x, int64_t axis = -1) {
  return TrySoftmax(KernelCase(op, {x}, {{"axis", axis}})).value().ToVector<float>();
}

Tensor Logits(Shape shape) {
  Floats values(shape.elements());
  for (size_t i = 0; i < values.size(); ++i) values[i] = 4 * std::sin(static_cast<float>(i * i));
  return Tensor::Of<float>(std::move(shape), values);
}

// log(sum e^x) of the line along the axis on which element i lies, `inner` elements apart.
double LogSumOf(const Tensor& x, int64_t i, int64_t count, int64_t inner) {
  double sum = 0;
  const int64_t start = i - i / inner % count * inner;
  for (int64_t k = 0; k < count; ++k)
    sum += std::exp(static_cast<double>(x.data<float>()[start + k * inner]));
  return std::log(sum);
}

TEST(Softmax, EqualsLoopsAlongAnyAxis) {
  for (const Shape& shape : {Shape{2, 3, 4}, Shape{7}, Shape{12, 20, 9}, Shape{2, 140, 67}}) {
    const Tensor x = Logits(shape);
    for (int axis = -shape.rank(); axis < shape.rank(); ++axis) {
      const int a = (axis + shape.rank()) % shape.rank();
      const Floats soft = SoftmaxOf("Softmax", x, axis), logs = SoftmaxOf("LogSoftmax", x, axis),
                   hard = SoftmaxOf("Hardmax", x, axis);
      for (int64_t i = 0; i < x.elements(); ++i) {
        const int64_t inner = shape.Elements(a + 1, shape.rank()),
                      start = i - i / inner % shape[a] * inner;
        const double expected = x.data<float>()[i] - LogSumOf(x, i, shape[a], inner);
        ASSERT_NEAR(logs[i], expected, kFloatSteps) << shape.ToString() << axis;
        ASSERT_NEAR(soft[i], std::exp(expected), kFloatSteps);
        bool largest = true;
        for (int64_t k = 0; k < shape[a]; ++k)
          largest = largest && x.data<float>()[start + k * inner] <= x.data<float>()[i];
        ASSERT_EQ(hard[i], largest);
      }
    }
  }
}

TEST(Softmax, OfNumbersWhoseExponentialsOverflow) {
  const float most = std::numeric_limits<float>::max();
  EXPECT_THAT(SoftmaxOf("Softmax", FloatVector({1000, 1000})), ElementsAre(0.5f, 0.5f));
  EXPECT_THAT(SoftmaxOf("Softmax", FloatVector({-1000, -1000})), ElementsAre(0.5f, 0.5f));
  EXPECT_THAT(SoftmaxOf("Softmax", FloatVector({most, -most, 0})), ElementsAre(1, 0, 0));
  EXPECT_THAT(SoftmaxOf("LogSoftmax", FloatVector({0, -1000})), ElementsAre(0, -1000));
  EXPECT_THAT(SoftmaxOf("LogSoftmax", FloatVector({1e30f, 0})), ElementsAre(0, -1e30f));
}

// A row of -infinity has no largest number: it is NaN, and its neighbours are not. Small, and
// oneDNN's size; along either axis.
TEST(Softmax, OfInfinities) {
  for (const int64_t n : {int64_t{4}, int64_t{40}}) {
    for (const int64_t axis : {0, 1}) {
      Tensor x = Tensor::Zeros(DType::kFloat32, {n, n});
      const auto at = [&](int64_t line, int64_t k) {
        return axis == 1 ? line * n + k : k * n + line;
      };
      for (int64_t k = 0; k < n; ++k) x.data<float>()[at(1, k)] = -kInfinity;
      for (int64_t k = 1; k < n; ++k) x.data<float>()[at(2, k)] = -kInfinity;
      x.data<float>()[at(3, 0)] = kNaN;
      const Floats soft = SoftmaxOf("Softmax", x, axis), logs = SoftmaxOf("LogSoftmax", x, axis);
      for (int64_t k = 0; k < n; ++k) {
        EXPECT_FLOAT_EQ(soft[at(0, k)], 1 / static_cast<float>(n));
        EXPECT_TRUE(std::isnan(soft[at(1, k)]) && std::isnan(logs[at(1, k)]))
            << n << " " << axis << " " << soft[at(1, k)] << logs[at(1, k)];
        EXPECT_EQ(soft[at(2, k)], k == 0);
        EXPECT_EQ(logs[at(2, k)], k == 0 ? 0 : -kInfinity);
        EXPECT_TRUE(std::isnan(soft[at(3, k)]) && std::isnan(logs[at(3, k)]))
            << soft[at(3, k)] << logs[at(3, k)];
      }
    }
  }
}

TEST(Softmax, HardmaxTakesTheFirstOfEquals) {
  EXPECT_THAT(SoftmaxOf("Hardmax", Tensor::Of<float>({2, 3}, {1, 4, 4, -2, -2, -3})),
              ElementsAre(0, 1, 0, 1, 0, 0));
  EXPECT_THAT(SoftmaxOf("Hardmax", FloatVector({-kInfinity, -kInfinity})), ElementsAre(1, 0));
}

TEST(Softmax, RefusesAxesThatAreNotThere) {
  for (const char* op : {"Softmax", "LogSoftmax", "Hardmax"}) {
    for (const int64_t axis : {2, -3})
      EXPECT_EQ(TrySoftmax(KernelCase(op, {Logits({2, 3})}, {{"axis", axis}})).status().code(),
                StatusCode::kInvalidArgument);
    EXPECT_EQ(TrySoftmax(KernelCase(op, {Tensor::Scalar(1.0f)})).status().code(),
              StatusCode::kInvalidArgument);
  }
}

// Up to version 12 the axes from `axis` on were one, and the default was 1.
TEST(Softmax, OldModelsFlattenTheirAxes) {
  const Tensor x = Logits({2, 3, 2});
  SessionOptions options;
  options.providers = {MakeCpuProvider()};
  const auto session =
      Session::Create(ParseModelText("<ir_version: 7, opset_import: [\"\" : 11]> g (float[2,3,2] "
                                     "x) => (float[2,3,2] y) { y = Softmax (x) }")
                          .value(),
                      std::move(options))
          .value();
  const Tensor y = session->Run({{"x", x}}).value()[0].tensor();
  for (int64_t i = 0; i < 12; ++i)
    EXPECT_NEAR(y.data<float>()[i], std::exp(x.data<float>()[i] - LogSumOf(x, i, 6, 1)),
                kFloatSteps);
}

struct LabelLoss {
  const char* op;
  Tensor scores;
  Ints labels;  // of [batch, positions] or [batch]
  Floats weights = {};
  const char* reduction = "mean";
  std::optional<int64_t> ignored = {};

  Result<Tensor> Run() const {
    Ints dims = scores.shape().dims();
    dims.erase(dims.begin() + 1);
    AttributeMap attributes = {{"reduction", Text(reduction)}};
    if (ignored) attributes["ignore_index"] = *ignored;
    return TrySoftmax(
        KernelCase(op,
                   {scores, Tensor::Of<int64_t>(Shape(dims), labels),
                    weights.empty() ? RuntimeValue() : RuntimeValue(FloatVector(weights))},
                   attributes));
  }
  // By plain loops in double.
  Doubles Expected() const {
    const Shape& s = scores.shape();
    const int64_t classes = s[1], inner = s.Elements(2, s.rank());
    double sum = 0, total = 0;
    Doubles each;
    for (size_t i = 0; i < labels.size(); ++i) {
      const int64_t at = static_cast<int64_t>(i) / inner * classes * inner +
                         static_cast<int64_t>(i) % inner + labels[i] * inner;
      double weight = 0, loss = 0;
      if (labels[i] != ignored) {
        weight = weights.empty() ? 1 : weights[labels[i]];
        loss = -scores.data<float>()[at];
        if (op[0] == 'S') loss += LogSumOf(scores, at, classes, inner);
      }
      each.push_back(weight * loss);
      sum += weight * loss;
      total += weight;
    }
    return reduction[0] == 'n' ? each : Doubles{reduction[0] == 's' ? sum : sum / total};
  }
};

TEST(LabelLosses, EqualLoops) {
  for (const char* op : {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}) {
    for (const char* reduction : {"none", "sum", "mean"}) {
      for (const Floats& weights : {Floats{}, Floats{0.5f, 2, 0, 3}}) {
        for (const std::optional<int64_t> ignored :
             {std::optional<int64_t>(), std::optional<int64_t>(1), std::optional<int64_t>(-100)}) {
          const int64_t odd = ignored == -100 ? -100 : 1;  // an ignored label may lie outside
          for (const LabelLoss& loss :
               {LabelLoss{op, Logits({3, 4}), {0, odd, 3}, weights, reduction, ignored},
                LabelLoss{
                    op, Logits({2, 4, 3}), {0, odd, 3, 2, odd, 3}, weights, reduction, ignored}}) {
            const Doubles y = loss.Run().value().ToVector<double>();
            EXPECT_THAT(y, Pointwise(DoubleNear(1e-4), loss.Expected()))
                << op << reduction;  // weights of 3, six samples
          }
        }
      }
    }
  }
}

TEST(LabelLosses, OfIgnoredLabelsOnly) {
  for (const char* op : {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}) {
    const auto loss = [&](const char* reduction) {
      return LabelLoss{op, Logits({2, 4}), {1, 1}, {}, reduction, 1}
          .Run()
          .value()
          .ToVector<float>();
    };
    EXPECT_THAT(loss("none"), ElementsAre(0, 0));
    EXPECT_THAT(loss("sum"), ElementsAre(0));
    EXPECT_TRUE(std::isnan(loss("mean")[0]));  // of no samples: 0 / 0
  }
}

TEST(LabelLosses, OfLargeScores) {
  const LabelLoss loss{"SoftmaxCrossEntropyLoss",
                       Tensor::Of<float>({2, 2}, {1e4f, 0, 1e4f, -1e4f}),
                       {0, 1},
                       {},
                       "none"};
  EXPECT_THAT(loss.Run().value().ToVector<float>(), ElementsAre(0, 2e4f));
  const auto both =
      KernelCase("SoftmaxCrossEntropyLoss", {loss.scores, IntVector({0, 1})}, {}, "", 2)
          .Run()
          .value();
  EXPECT_THAT(both[1].tensor().ToVector<float>(),
              ElementsAre(0, -1e4f, 0, -2e4f));  // log-probabilities
}

TEST(LabelLosses, RefuseWhatDoesNotFit) {
  const Tensor x = Logits({2, 4});
  for (const char* op : {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}) {
    for (const LabelLoss& loss :
         {LabelLoss{op, x, {0, 4}}, LabelLoss{op, x, {-1, 0}},
          LabelLoss{op, x, {-1, 0}, {}, "sum", 2}, LabelLoss{op, x, {0, 1}, {1, 1, 1}},
          LabelLoss{op, x, {0, 1}, {}, "median"}})
      EXPECT_EQ(loss.Run().status().code(), StatusCode::kInvalidArgument);
    for (const Tensor& labels :
         {IntVector({0, 1, 2}), Tensor::Of<int64_t>({2, 1}, {0, 1}), FloatVector({0, 1})})
      EXPECT_EQ(TrySoftmax(KernelCase(op, {x, labels})).status().code(),
                StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace caesura
