// SPDX-License-Identifier: Apache-2.0
// Runs one training kernel and gives its outputs as numbers; and the derivatives that gradients are
// held against.
#ifndef CAESURA_TESTS_CORE_OPS_GRADIENTS_TRAINING_CASE_H_
#define CAESURA_TESTS_CORE_OPS_GRADIENTS_TRAINING_CASE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "tests/kernel_case.h"

namespace caesura {

using TrainingOutputs = std::vector<std::vector<double>>;

inline constexpr DType kEveryFloat[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16,
                                        DType::kBFloat16};

// The outputs of one node of domain ai.caesura.
inline Result<TrainingOutputs> RunTrainingKernel(const char* op, std::vector<RuntimeValue> inputs,
                                                 AttributeMap attributes = {}, int outputs = 1,
                                                 int threads = 1) {
  KernelCase node(op, std::move(inputs), std::move(attributes), kCaesuraDomain, outputs);
  node.threads = threads;
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> values, node.Run());
  TrainingOutputs out;
  for (const RuntimeValue& value : values) out.push_back(value.tensor().ToVector<double>());
  return out;
}

// Its first output. REQUIRES: it runs.
inline std::vector<double> FirstOutput(const char* op, std::vector<RuntimeValue> inputs,
                                       AttributeMap attributes = {}) {
  return RunTrainingKernel(op, std::move(inputs), std::move(attributes)).value()[0];
}

// Why it does not run; empty if it does.
inline std::string WhyRefused(const char* op, std::vector<RuntimeValue> inputs,
                              AttributeMap attributes = {}, int outputs = 1) {
  return RunTrainingKernel(op, std::move(inputs), std::move(attributes), outputs)
      .status()
      .message();
}

// The tensor in another float dtype.
inline Tensor InDType(const Tensor& tensor, DType dtype) {
  const Tensor out = Tensor::Zeros(dtype, tensor.shape());
  const std::vector<double> values = tensor.ToVector<double>();
  DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<T, double>) out.data<T>()[i] = values[i];
      else out.data<T>()[i] = T(static_cast<float>(values[i]));
    }
  });
  return out;
}

// Expects exactly these outputs, in every float dtype and on several threads; float64 inputs take
// the dtype. For numbers of a few bits, of which no dtype rounds any.
inline void ExpectInEveryFloat(const char* op, const std::vector<RuntimeValue>& inputs,
                               const AttributeMap& attributes, const TrainingOutputs& expected) {
  for (const DType dtype : kEveryFloat) {
    std::vector<RuntimeValue> converted = inputs;
    for (RuntimeValue& value : converted) {
      if (value.is_tensor() && value.tensor().dtype() == DType::kFloat64)
        value = InDType(value.tensor(), dtype);
    }
    for (const int threads : {1, 3}) {
      const auto out =
          RunTrainingKernel(op, converted, attributes, static_cast<int>(expected.size()), threads);
      ASSERT_TRUE(out.ok()) << out.status().ToString();
      EXPECT_EQ(*out, expected) << op << " in " << DTypeName(dtype);
    }
  }
}

// Float64 numbers of a normal distribution.
inline Tensor RandomTensor(const Shape& shape, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<double> normal;
  const Tensor out = Tensor::Zeros(DType::kFloat64, shape);
  for (int64_t i = 0; i < shape.elements(); ++i) out.data<double>()[i] = normal(random);
  return out;
}

// The sum of the products of two tensors' elements.
inline double Dot(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.ToVector<double>(), y = b.ToVector<double>();
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// The derivatives of loss(x) by the elements of x, which is float64. They are wrong by the square
// of the step and by 1e-16 / step: about 1e-10 of the loss.
template <typename Loss>
std::vector<double> CentralDifferences(const Tensor& x, Loss loss) {
  constexpr double kStep = 1e-5;
  std::vector<double> out;
  for (int64_t i = 0; i < x.elements(); ++i) {
    const Tensor moved = x.Clone().value();
    double& element = moved.data<double>()[i];
    const double at = element;
    element = at + kStep;
    const double above = loss(moved);
    element = at - kStep;
    out.push_back((above - loss(moved)) / (2 * kStep));
  }
  return out;
}

// Matches numbers that differ by no more than `tolerance` each.
inline auto AreNear(std::vector<double> expected, double tolerance) {
  return ::testing::Pointwise(::testing::DoubleNear(tolerance), std::move(expected));
}

}  // namespace caesura

#endif  // CAESURA_TESTS_CORE_OPS_GRADIENTS_TRAINING_CASE_H_
