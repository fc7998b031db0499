// SPDX-License-Identifier: Apache-2.0
// The broadcast walk against index arithmetic, and the corners of elementwise kernels that node
// tests leave out.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/kernels/walks/broadcast.h"
#include "tests/kernel_case.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Result<Tensor> RunKernel(const char* op_type, std::vector<RuntimeValue> inputs,
                         AttributeMap attributes = {}) {
  KernelCase node(op_type, std::move(inputs), std::move(attributes));
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> out, node.Run());
  return out[0].tensor();
}

// Where element `i` of `output` lies in an operand, by division.
int64_t OffsetOf(int64_t i, const Shape& output, const Shape& operand) {
  int64_t offset = 0, stride = 1;
  for (int d = output.rank() - 1; d >= 0; --d) {
    const int64_t index = i % output[d];
    i /= output[d];
    const int own = d - (output.rank() - operand.rank());
    if (own < 0) continue;
    offset += operand[own] == 1 ? 0 : index * stride;
    stride *= operand[own];
  }
  return offset;
}

TEST(Broadcast, WalkVisitsWhatIndexArithmeticSays) {
  std::mt19937 random(1);
  auto pick = [&](int n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 500; ++round) {
    std::vector<int64_t> dims(pick(6));
    for (int64_t& dim : dims) dim = 1 + pick(5);
    const Shape output(dims);
    std::array<Shape, 3> shapes;
    for (Shape& shape : shapes) {
      std::vector<int64_t> own = dims;
      for (int64_t& dim : own) dim = pick(3) == 0 ? 1 : dim;
      own.erase(own.begin(), own.begin() + pick(static_cast<int>(own.size()) + 1));
      shape = Shape(own);
    }
    const auto plan = MakeBroadcastPlan<3>(output, {&shapes[0], &shapes[1], &shapes[2]}).value();
    const int64_t first = pick(static_cast<int>(output.elements()));
    const int64_t last = first + 1 + pick(static_cast<int>(output.elements() - first));
    int64_t next = first;
    ForEachRun(plan, first, last, [&](const auto& offsets, int64_t at, int64_t length) {
      ASSERT_EQ(at, next);
      next = at + length;
      for (int n = 0; n < 3; ++n) {
        for (int64_t j = 0; j < length; ++j) {
          ASSERT_EQ(offsets[n] + (plan.Moves(n) ? j : 0), OffsetOf(at + j, output, shapes[n]));
        }
      }
    });
    EXPECT_EQ(next, last);
  }
}

TEST(Broadcast, RefusesWhatDoesNotFit) {
  const Shape a{2, 3}, b{2, 4};
  EXPECT_EQ(MakeBroadcastPlan<1>(a, {&b}).status().code(), StatusCode::kInvalidArgument);
  const Result<Tensor> sum =
      RunKernel("Add", {Tensor::Zeros(DType::kFloat32, a), Tensor::Zeros(DType::kFloat32, b)});
  EXPECT_EQ(sum.status().message(), "[Add 'Add'] shapes [2, 3] and [2, 4] do not broadcast");
}

TEST(Elementwise, EmptyAndScalar) {
  const Tensor empty = Tensor::Zeros(DType::kFloat32, {0, 3}), one = Tensor::Scalar(2.0f);
  EXPECT_EQ(RunKernel("Mul", {empty, one}).value().shape(), (Shape{0, 3}));
  EXPECT_EQ(RunKernel("Exp", {empty}).value().shape(), (Shape{0, 3}));
  EXPECT_EQ(RunKernel("Mul", {one, one}).value().ToVector<float>(), std::vector<float>{4});
}

TEST(Elementwise, NanGoesThrough) {
  const Tensor nan = Tensor::Scalar(kNan), one = Tensor::Scalar(1.0f);
  for (const char* op_type :
       {"Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Gelu", "Sigmoid", "Tanh", "HardSigmoid",
        "HardSwish", "Softplus", "Mish", "Swish", "Clip", "Exp", "Log", "Erf"}) {
    EXPECT_TRUE(std::isnan(RunKernel(op_type, {nan}).value().ToVector<float>()[0])) << op_type;
  }
  for (const char* op_type : {"Max", "Min", "Sum"}) {
    EXPECT_TRUE(std::isnan(RunKernel(op_type, {nan, one}).value().ToVector<float>()[0]));
    EXPECT_TRUE(std::isnan(RunKernel(op_type, {one, nan}).value().ToVector<float>()[0]));
  }
}

TEST(Elementwise, TheSignOfNanIsNan) {
  const Tensor x = Tensor::Of<float>({4}, {kNan, -kInfinity, -0.0f, 2});
  const auto y = RunKernel("Sign", {x}).value().ToVector<float>();
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(std::vector<float>(y.begin() + 1, y.end()), (std::vector<float>{-1, 0, 1}));
}

// The schema's function asks whether x is above alpha.
TEST(Elementwise, ThresholdedReluOfNanIsZero) {
  const Tensor x = Tensor::Of<float>({4}, {kNan, 1, 1.5f, kInfinity});
  EXPECT_EQ(RunKernel("ThresholdedRelu", {x}).value().ToVector<float>(),
            (std::vector<float>{0, 0, 1.5f, kInfinity}));
}

// The bytes of float8e8m0: 2^(byte - 127), 255 for NaN.
TEST(Cast, ToPowersOfTwo) {
  const float least = 0x1p-127f, most = 0x1p127f;
  struct Case {
    float x;
    std::vector<int> bytes;  // up, down, nearest, then without saturation
  };
  const std::vector<Case> cases = {{least, {0, 0, 0, 0, 0, 0}},
                                   {1.25f * least, {1, 0, 0, 1, 0, 0}},
                                   {1.5f * least, {1, 0, 1, 1, 0, 1}},
                                   {1.75f * least, {1, 0, 1, 1, 0, 1}},
                                   {2 * least, {1, 1, 1, 1, 1, 1}},
                                   {0x1p-128f, {0, 0, 0, 255, 255, 255}},
                                   {0x1.8p-128f, {0, 0, 0, 255, 255, 255}},
                                   {1e-45f, {0, 0, 0, 255, 255, 255}},
                                   {0, {0, 0, 0, 255, 255, 255}},
                                   {1, {127, 127, 127, 127, 127, 127}},
                                   {1.25f, {128, 127, 127, 128, 127, 127}},
                                   {1.5f, {128, 127, 128, 128, 127, 128}},
                                   {most, {254, 254, 254, 254, 254, 254}},
                                   {1.25f * most, {254, 254, 254, 255, 255, 255}},
                                   {kInfinity, {254, 254, 254, 255, 255, 255}},
                                   {kNan, {255, 255, 255, 255, 255, 255}}};
  for (const Case& c : cases) {
    size_t i = 0;
    for (const int64_t saturate : {1, 0}) {
      for (const char* mode : {"up", "down", "nearest"}) {
        const AttributeMap attributes = {{"to", static_cast<int64_t>(DType::kFloat8E8M0)},
                                         {"saturate", saturate},
                                         {"round_mode", std::string(mode)}};
        const Tensor y = RunKernel("Cast", {Tensor::Scalar(c.x)}, attributes).value();
        EXPECT_EQ(*y.data<uint8_t>(), c.bytes[i++]) << c.x << " " << mode << " " << saturate;
      }
    }
  }
}

// The scale is 0 by the formula; the zero point and the elements, which it divides by 0, are 0.
TEST(DynamicQuantizeLinear, OfZeros) {
  KernelCase node("DynamicQuantizeLinear", {Tensor::Zeros(DType::kFloat32, Shape{3})}, {}, "", 3);
  const auto out = node.Run().value();
  EXPECT_EQ(out[0].tensor().ToVector<uint8_t>(), (std::vector<uint8_t>{0, 0, 0}));
  EXPECT_EQ(*out[1].tensor().data<float>(), 0);
  EXPECT_EQ(*out[2].tensor().data<uint8_t>(), 0);
}

TEST(Clip, AbsentBoundsDoNotBound) {
  const Tensor x = Tensor::Of<float>({3}, {kInfinity, -1, 5});
  EXPECT_EQ(RunKernel("Clip", {x, Tensor::Scalar(0.0f)}).value().ToVector<float>(),
            (std::vector<float>{kInfinity, 0, 5}));
  EXPECT_EQ(RunKernel("Clip", {x, RuntimeValue(), Tensor::Scalar(2.0f)}).value().ToVector<float>(),
            (std::vector<float>{2, -1, 2}));
}

TEST(Integers, DivisionIsDefinedEverywhereButByZero) {
  const int32_t lowest = std::numeric_limits<int32_t>::lowest();
  const Tensor a = Tensor::Of<int32_t>({3}, {lowest, 7, -7}),
               b = Tensor::Of<int32_t>({3}, {-1, -2, 2});
  EXPECT_EQ(RunKernel("Div", {a, b}).value().ToVector<int32_t>(),
            (std::vector<int32_t>{lowest, -3, -3}));
  EXPECT_EQ(RunKernel("Mod", {a, b}).value().ToVector<int32_t>(), (std::vector<int32_t>{0, -1, 1}));
  const Tensor zero = Tensor::Scalar<int32_t>(0);
  for (const char* op_type : {"Div", "Mod"}) {
    EXPECT_EQ(RunKernel(op_type, {a, zero}).status().code(), StatusCode::kInvalidArgument);
  }
  const Tensor none = Tensor::Zeros(DType::kInt32, {0});
  EXPECT_TRUE(RunKernel("Div", {none, zero}).ok());
}

TEST(Pow, TypesAndSpecialExponents) {
  const Tensor base = Tensor::Of<float>({3}, {-2, 0.5f, 3});
  for (float e : {1.0f, 2.0f, 3.0f, -1.0f}) {
    const std::vector<float> y =
        RunKernel("Pow", {base, Tensor::Scalar(e)}).value().ToVector<float>();
    for (int i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(y[i], std::pow(base.data<float>()[i], e));
  }
  const Tensor integers = Tensor::Of<int64_t>({3}, {2, -1, 10}),
               exponents = Tensor::Of<int32_t>({3}, {40, -3, 0});
  EXPECT_EQ(RunKernel("Pow", {integers, exponents}).value().ToVector<int64_t>(),
            (std::vector<int64_t>{int64_t{1} << 40, -1, 1}));
}

TEST(Where, StringsBroadcast) {
  const Tensor condition = Tensor::Zeros(DType::kBool, {2, 1});
  condition.data<bool>()[0] = true;
  const Tensor a = Tensor::Of<std::string>({2}, {"a", "b"}), b = Tensor::Scalar<std::string>("-");
  const Tensor y = RunKernel("Where", {condition, a, b}).value();
  EXPECT_EQ(std::vector<std::string>(y.data<std::string>(), y.data<std::string>() + 4),
            (std::vector<std::string>{"a", "b", "-", "-"}));
}

Result<Tensor> CastTo(const Tensor& x, DType to, bool saturate = true) {
  return RunKernel("Cast", {x},
                   {{"to", static_cast<int64_t>(to)}, {"saturate", int64_t{saturate}}});
}

TEST(Cast, TextIsParsedWhole) {
  const Tensor good = Tensor::Of<std::string>({4}, {"3.5", " +INF ", "-1E2", "nan"});
  const std::vector<float> y = CastTo(good, DType::kFloat32).value().ToVector<float>();
  EXPECT_EQ(y[0], 3.5f);
  EXPECT_EQ(y[1], kInfinity);
  EXPECT_EQ(y[2], -100.0f);
  EXPECT_TRUE(std::isnan(y[3]));
  for (const char* text : {"", "Hello", "1.2.3", "0x10", "+-1", "12 34"}) {
    EXPECT_EQ(CastTo(Tensor::Scalar<std::string>(text), DType::kFloat32).status().code(),
              StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(Cast, NumbersBecomeShortText) {
  const Tensor x = Tensor::Of<float>({5}, {0.1f, 100000, 1e-5f, -kInfinity, 1});
  const Tensor y = CastTo(x, DType::kString).value();
  EXPECT_EQ(std::vector<std::string>(y.data<std::string>(), y.data<std::string>() + 5),
            (std::vector<std::string>{"0.1", "100000.0", "1e-05", "-inf", "1.0"}));
}

TEST(Cast, WrapsAndSaturates) {
  const Tensor x = Tensor::Of<float>({4}, {300, -1, kNan, 1e20f});
  EXPECT_EQ(CastTo(x, DType::kUInt8).value().ToVector<int>(), (std::vector<int>{44, 255, 0, 0}));
  const Tensor wide = CastTo(CastTo(x, DType::kFloat8E4M3FN).value(), DType::kFloat32).value();
  EXPECT_EQ(wide.data<float>()[3], 448.0f);
  const Tensor lost =
      CastTo(CastTo(x, DType::kFloat8E4M3FN, false).value(), DType::kFloat32).value();
  EXPECT_TRUE(std::isnan(lost.data<float>()[3]));
  const Tensor fours = CastTo(CastTo(x, DType::kInt4).value(), DType::kInt32).value();
  EXPECT_EQ(fours.ToVector<int>(), (std::vector<int>{-4, -1, 0, 0}));
}

}  // namespace
}  // namespace caesura
