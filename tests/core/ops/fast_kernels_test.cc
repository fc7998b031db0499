// SPDX-License-Identifier: Apache-2.0
// The fast kernels (oneDNN, and half precision through it) against the plain float64 ones, at sizes
// that take the fast path; results that repeat, whoever runs beside them.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>

#include "tests/kernel_case.h"

namespace caesura {
namespace {

using Ints = std::vector<int64_t>;

// A random float input, or integers in [0, classes).
struct Input {
  Shape shape;
  int64_t classes = 0;
  bool is_sum = false;  // of elements: float32 where these are halves
};

struct FastCase {
  std::string name, op_type;
  std::vector<Input> inputs;
  AttributeMap attributes = {};
  int outputs = 1;
  std::string domain = "";
  double half_tolerance = 0.03;  // of float16 and bfloat16, relative to the largest element
};

std::vector<FastCase> FastCases() {
  const std::string own = kCaesuraDomain;
  const AttributeMap strided = {
      {"strides", Ints{2, 1}}, {"pads", Ints{1, 2, 0, 1}}, {"dilations", Ints{1, 2}}};
  const AttributeMap grouped = {{"group", int64_t{4}}, {"pads", Ints{1, 1, 1, 1}}};
  const AttributeMap hidden = {{"hidden_size", int64_t{40}}, {"linear_before_reset", int64_t{1}}};
  return {
      {"MatMul", "MatMul", {{{70, 90}}, {{90, 50}}}},
      {"MatMulBatch", "MatMul", {{{3, 1, 40, 60}}, {{5, 60, 30}}}},
      {"MatMulShared", "MatMul", {{{6, 40, 60}}, {{60, 30}}}},
      {"MatMulPanels",
       "MatMul",
       {{{530, 96}}, {{96, 200}}}},  // rows that threads come for, the last ones fewer
      {"MatMulPanelsBias",
       "FusedMatMul",
       {{{2, 256, 96}}, {{200, 96}}, {{200}}, {{2, 256, 200}}},
       {{"transB", int64_t{1}}},
       1,
       own},
      {"MatMulVector", "MatMul", {{{300}}, {{300, 200}}}},
      {"MatMulTransA",
       "FusedMatMul",
       {{{4, 60, 40}}, {{4, 60, 30}}},
       {{"transA", int64_t{1}}},
       1,
       own},
      {"MatMulTransBoth",
       "FusedMatMul",
       {{{4, 60, 40}}, {{1, 30, 60}}},
       {{"transA", int64_t{1}}, {"transB", int64_t{1}}, {"alpha", 0.5f}},
       1,
       own},
      {"GemmBias", "Gemm", {{{50, 60}}, {{60, 70}}, {{70}}}},
      {"GemmColumn",
       "Gemm",
       {{{60, 50}}, {{70, 60}}, {{50, 1}}},
       {{"alpha", 0.5f}, {"beta", 2.0f}, {"transA", int64_t{1}}, {"transB", int64_t{1}}}},
      {"Einsum",
       "Einsum",
       {{{3, 20, 4, 30}}, {{3, 25, 4, 30}}},
       {{"equation", std::string("bqhd,bkhd->bhqk")}}},
      {"Conv", "Conv", {{{4, 20, 15, 14}}, {{24, 20, 3, 3}}, {{24}}}, strided},
      {"ConvFirst", "Conv", {{{4, 1, 16, 16}}, {{24, 1, 5, 5}}, {{24}}}},
      {"ConvGrouped", "Conv", {{{2, 16, 12, 13}}, {{32, 4, 3, 3}}, {{32}}}, grouped},
      {"Conv1d", "Conv", {{{4, 18, 50}}, {{20, 18, 3}}, {{20}}}},
      {"Conv3d", "Conv", {{{2, 6, 8, 7, 6}}, {{10, 6, 3, 3, 3}}}},
      {"ConvTranspose",
       "ConvTranspose",
       {{{2, 20, 9, 8}}, {{20, 12, 3, 3}}, {{12}}},
       {{"strides", Ints{2, 2}}, {"output_padding", Ints{1, 0}}, {"pads", Ints{1, 1, 1, 1}}}},
      {"ConvGrad",
       "ConvGrad",
       {{{4, 24, 7, 13}}, {{4, 20, 15, 14}}, {{24, 20, 3, 3}}},
       strided,
       3,
       own},
      {"ConvGradFirst",
       "ConvGrad",
       {{{4, 24, 12, 12}}, {{4, 1, 16, 16}}, {{24, 1, 5, 5}}},
       {},
       3,
       own},
      {"ConvGradGrouped",
       "ConvGrad",
       {{{2, 32, 12, 13}}, {{2, 16, 12, 13}}, {{32, 4, 3, 3}}},
       grouped,
       3,
       own},
      {"ConvTransposeGrad",
       "ConvTransposeGrad",
       {{{2, 12, 18, 15}}, {{2, 20, 9, 8}}, {{20, 12, 3, 3}}},
       {{"strides", Ints{2, 2}}, {"output_padding", Ints{1, 0}}, {"pads", Ints{1, 1, 1, 1}}},
       3,
       own},
      {"MaxPool",
       "MaxPool",
       {{{2, 3, 9, 8}}},
       {{"kernel_shape", Ints{3, 2}}, {"strides", Ints{2, 2}}}},
      {"AveragePool",
       "AveragePool",
       {{{2, 3, 9, 8}}},
       {{"kernel_shape", Ints{3, 2}}, {"pads", Ints{1, 0, 1, 1}}}},
      {"Softmax", "Softmax", {{{20, 30, 7}}}, {{"axis", int64_t{1}}}},
      {"LogSoftmax", "LogSoftmax", {{{20, 300}}}},
      {"LayerNormalization", "LayerNormalization", {{{200, 96}}, {{96}}, {{96}}}},
      {"BatchNormalizationTraining",
       "BatchNormalizationTraining",
       {{{8, 20, 30}}, {{20}}, {{20}}, {{20}}, {{20}}},
       {},
       5,
       own},
      {"SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLoss", {{{40, 30}}, {{40}, 30}}, {}, 2},
      {"SoftmaxCrossEntropyLossTraining",
       "SoftmaxCrossEntropyLossTraining",
       {{{3, 30, 37}}, {{3, 37}, 30}, {{30}}},
       {{"reduction", std::string("none")}},
       3,
       own},
      {"SoftmaxCrossEntropyLossGrad",
       "SoftmaxCrossEntropyLossGrad",
       {{{}}, {{40, 30}}, {{40}, 30}, {{30}}, {{40}, 0, true}},
       {},
       1,
       own},
      {"SoftmaxCrossEntropyLossGradOfImages",
       "SoftmaxCrossEntropyLossGrad",
       {{{3, 37}}, {{3, 30, 37}}, {{3, 37}, 30}, {{30}}, {{3, 37}, 0, true}},
       {{"reduction", std::string("none")}, {"ignore_index", int64_t{7}}},
       1,
       own},
      {"Attention",
       "Attention",
       {{{2, 4, 20, 16}}, {{2, 2, 24, 16}}, {{2, 2, 24, 12}}, {{20, 24}}},
       {{"is_causal", int64_t{1}}}},
      {"AttentionPacked",
       "Attention",
       {{{2, 20, 64}}, {{2, 24, 32}}, {{2, 24, 32}}},
       {{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}, {"softcap", 3.0f}}},
      {"AttentionGrad",
       "AttentionGrad",
       {{{2, 20, 64}}, {{2, 20, 64}}, {{2, 24, 32}}, {{2, 24, 32}}},
       {{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}},
       3,
       own},
      {"LSTM",
       "LSTM",
       {{{7, 6, 30}}, {{2, 160, 30}}, {{2, 160, 40}}, {{2, 320}}},
       {{"hidden_size", int64_t{40}}, {"direction", std::string("bidirectional")}},
       3},
      {"GRU", "GRU", {{{7, 6, 30}}, {{1, 120, 30}}, {{1, 120, 40}}, {{1, 240}}}, hidden, 2},
      {"RNNBatchFirst",
       "RNN",
       {{{6, 7, 30}}, {{1, 40, 30}}, {{1, 40, 40}}, {{1, 80}}},
       {{"hidden_size", int64_t{40}}, {"layout", int64_t{1}}},
       2},
  };
}

// The case's inputs, drawn from the same numbers whatever the dtype.
std::vector<RuntimeValue> MakeInputs(const FastCase& c, DType dtype) {
  std::mt19937 random(7);
  std::vector<RuntimeValue> out;
  for (const Input& input : c.inputs) {
    const DType of = input.classes > 0                          ? DType::kInt64
                     : input.is_sum && dtype != DType::kFloat64 ? DType::kFloat32
                                                                : dtype;
    Tensor tensor = Tensor::Zeros(of, input.shape);
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      if (input.classes > 0) {
        tensor.data<int64_t>()[i] =
            static_cast<int64_t>(random() % static_cast<uint32_t>(input.classes));
        continue;
      }
      // Numbers that bfloat16 holds exactly, so that only the arithmetic differs.
      const float value = static_cast<float>(static_cast<int>(random() % 127) - 63) / 64;
      DispatchFloat(of, [&](auto tag) {
        using T = typename decltype(tag)::type;
        tensor.data<T>()[i] = T(value);
      });
    }
    out.emplace_back(std::move(tensor));
  }
  return out;
}

std::vector<std::vector<double>> Outputs(const FastCase& c, DType dtype, int threads) {
  KernelCase kernel(c.op_type, MakeInputs(c, dtype), c.attributes, c.domain, c.outputs);
  kernel.threads = threads;
  std::vector<std::vector<double>> out;
  const std::vector<RuntimeValue> results = kernel.Run().value();
  for (const RuntimeValue& value : results) out.push_back(value.tensor().ToVector<double>());
  return out;
}

void ExpectClose(const std::vector<std::vector<double>>& expected,
                 const std::vector<std::vector<double>>& actual, double tolerance) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t o = 0; o < expected.size(); ++o) {
    ASSERT_EQ(expected[o].size(), actual[o].size());
    double largest = 1e-3, error = 0;
    for (size_t i = 0; i < expected[o].size(); ++i) {
      largest = std::max(largest, std::abs(expected[o][i]));
      error = std::max(error, std::abs(expected[o][i] - actual[o][i]));
    }
    EXPECT_LE(error, tolerance * largest) << "output " << o;
  }
}

class FastKernelsTest : public ::testing::TestWithParam<FastCase> {};

TEST_P(FastKernelsTest, AgreeWithFloat64) {
  const auto expected = Outputs(GetParam(), DType::kFloat64, 1);
  ExpectClose(expected, Outputs(GetParam(), DType::kFloat32, 1), 1e-5);
  ExpectClose(expected, Outputs(GetParam(), DType::kFloat32, 2), 1e-5);
}

TEST_P(FastKernelsTest, HalfPrecisionIsNear) {
  const auto expected = Outputs(GetParam(), DType::kFloat64, 1);
  ExpectClose(expected, Outputs(GetParam(), DType::kBFloat16, 2), GetParam().half_tolerance);
  ExpectClose(expected, Outputs(GetParam(), DType::kFloat16, 2), GetParam().half_tolerance);
}

TEST_P(FastKernelsTest, RepeatBitForBitBesideOthers) {
  const struct {
    DType dtype;
    int threads;
  } kinds[] = {{DType::kFloat32, 1}, {DType::kBFloat16, 2}};
  for (const auto& kind : kinds) {
    const auto expected = Outputs(GetParam(), kind.dtype, kind.threads);
    std::vector<std::thread> threads;
    std::vector<std::vector<std::vector<double>>> results(3);
    for (auto& result : results) {
      threads.emplace_back([&] { result = Outputs(GetParam(), kind.dtype, kind.threads); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& result : results) EXPECT_EQ(expected, result) << DTypeName(kind.dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(All, FastKernelsTest, ::testing::ValuesIn(FastCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace caesura
