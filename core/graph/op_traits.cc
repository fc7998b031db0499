// SPDX-License-Identifier: Apache-2.0
#include "core/graph/op_traits.h"

#include <string_view>
#include <unordered_map>

namespace caesura {
namespace {

using View = OpTraits::View;
using Rows = OpTraits::Rows;
using Work = OpTraits::Work;
constexpr int kAll = OpTraits::kAll;

// clang-format off
std::vector<OpTraits> MakeTable() {
  return {
    // ONNX's
    {.op_type = "Abs", .elementwise = true, .half_inputs = 1},
    {.op_type = "Add", .elementwise = true, .arithmetic = true, .half_inputs = 2},
    {.op_type = "And", .elementwise = true, .result = DType::kBool},
    {.op_type = "ArgMax", .result = DType::kInt64},
    {.op_type = "ArgMin", .result = DType::kInt64},
    {.op_type = "Attention", .computes_in_half = true, .half_inputs = kAll, .work = Work::kAttention},
    {.op_type = "AveragePool", .half_inputs = 1},
    {.op_type = "Bernoulli", .random = true},
    {.op_type = "Cast", .elementwise = true},
    {.op_type = "Ceil", .elementwise = true},
    {.op_type = "Celu", .elementwise = true},
    {.op_type = "Clip", .elementwise = true, .half_inputs = 3},
    {.op_type = "Concat", .rows = Rows::kAlongAxis, .half_inputs = kAll},
    {.op_type = "Conv", .computes_in_half = true, .half_inputs = kAll, .work = Work::kConvolution},
    {.op_type = "ConvTranspose", .computes_in_half = true, .half_inputs = kAll},
    {.op_type = "Cos", .elementwise = true},
    {.op_type = "DepthToSpace", .half_inputs = 1},
    {.op_type = "Div", .elementwise = true, .arithmetic = true, .half_inputs = 2},
    {.op_type = "Dropout", .random = true, .half_inputs = 1},
    {.op_type = "Einsum", .computes_in_half = true, .half_inputs = kAll},
    {.op_type = "Elu", .elementwise = true, .half_inputs = 1},
    {.op_type = "Equal", .elementwise = true, .result = DType::kBool},
    {.op_type = "Erf", .elementwise = true},
    {.op_type = "Exp", .elementwise = true},
    {.op_type = "Expand", .half_inputs = 1},
    {.op_type = "Flatten", .view = View::kReshape, .half_inputs = 1},
    {.op_type = "Floor", .elementwise = true},
    {.op_type = "Gather", .half_inputs = 1},
    {.op_type = "Gelu", .elementwise = true, .half_inputs = 1},
    {.op_type = "Gemm", .computes_in_half = true, .half_inputs = kAll, .work = Work::kProduct},
    {.op_type = "Greater", .elementwise = true, .result = DType::kBool},
    {.op_type = "GreaterOrEqual", .elementwise = true, .result = DType::kBool},
    {.op_type = "HardSigmoid", .elementwise = true, .half_inputs = 1},
    {.op_type = "HardSwish", .elementwise = true, .half_inputs = 1},
    {.op_type = "Identity", .view = View::kSame, .half_inputs = 1},
    {.op_type = "IsInf", .elementwise = true, .result = DType::kBool},
    {.op_type = "IsNaN", .elementwise = true, .result = DType::kBool},
    {.op_type = "LayerNormalization", .rows = Rows::kAlongAxis},
    {.op_type = "LeakyRelu", .elementwise = true, .half_inputs = 1},
    {.op_type = "Less", .elementwise = true, .result = DType::kBool},
    {.op_type = "LessOrEqual", .elementwise = true, .result = DType::kBool},
    {.op_type = "Log", .elementwise = true},
    {.op_type = "LogSoftmax", .rows = Rows::kAlongAxis},
    {.op_type = "MatMul", .computes_in_half = true, .half_inputs = kAll, .work = Work::kProduct},
    {.op_type = "Max", .elementwise = true, .half_inputs = kAll},
    {.op_type = "MaxPool", .half_inputs = 1},
    {.op_type = "Mean", .elementwise = true},
    {.op_type = "Min", .elementwise = true, .half_inputs = kAll},
    {.op_type = "Mish", .elementwise = true},
    {.op_type = "Mul", .elementwise = true, .arithmetic = true, .half_inputs = 2},
    {.op_type = "Multinomial", .random = true},
    {.op_type = "Neg", .elementwise = true, .half_inputs = 1},
    {.op_type = "NonZero", .result = DType::kInt64},
    {.op_type = "Not", .elementwise = true, .result = DType::kBool},
    {.op_type = "Or", .elementwise = true, .result = DType::kBool},
    {.op_type = "Pow", .elementwise = true},
    {.op_type = "RMSNormalization", .rows = Rows::kAlongAxis},
    {.op_type = "RandomNormal", .random = true},
    {.op_type = "RandomNormalLike", .random = true},
    {.op_type = "RandomUniform", .random = true},
    {.op_type = "RandomUniformLike", .random = true},
    {.op_type = "Reciprocal", .elementwise = true},
    {.op_type = "ReduceL2", .rows = Rows::kReduces},
    {.op_type = "ReduceMax", .rows = Rows::kReduces},
    {.op_type = "ReduceMean", .rows = Rows::kReduces},
    {.op_type = "ReduceMin", .rows = Rows::kReduces},
    {.op_type = "ReduceSum", .rows = Rows::kReduces},
    {.op_type = "ReduceSumSquare", .rows = Rows::kReduces},
    {.op_type = "Relu", .elementwise = true, .half_inputs = 1},
    {.op_type = "Reshape", .view = View::kReshape, .half_inputs = 1},
    {.op_type = "Round", .elementwise = true},
    {.op_type = "Selu", .elementwise = true},
    {.op_type = "SequenceLength", .result = DType::kInt64},
    {.op_type = "Shape", .result = DType::kInt64},
    {.op_type = "Shrink", .elementwise = true},
    {.op_type = "Sigmoid", .elementwise = true, .half_inputs = 1},
    {.op_type = "Sign", .elementwise = true},
    {.op_type = "Sin", .elementwise = true},
    {.op_type = "Size", .result = DType::kInt64},
    {.op_type = "Slice", .half_inputs = 1},
    {.op_type = "Softmax", .rows = Rows::kAlongAxis},
    {.op_type = "Softplus", .elementwise = true},
    {.op_type = "Softsign", .elementwise = true},
    {.op_type = "SpaceToDepth", .half_inputs = 1},
    {.op_type = "Split", .rows = Rows::kAlongAxis, .row_axis = 0, .half_inputs = 1},
    {.op_type = "Sqrt", .elementwise = true},
    {.op_type = "Squeeze", .view = View::kReshape, .half_inputs = 1},
    {.op_type = "Sub", .elementwise = true, .arithmetic = true, .half_inputs = 2},
    {.op_type = "Sum", .elementwise = true},
    {.op_type = "Swish", .elementwise = true, .half_inputs = 1},
    {.op_type = "Tanh", .elementwise = true, .half_inputs = 1},
    {.op_type = "ThresholdedRelu", .elementwise = true},
    {.op_type = "Tile", .half_inputs = 1},
    {.op_type = "Transpose", .view = View::kPermutation, .half_inputs = 1},
    {.op_type = "Unsqueeze", .view = View::kReshape, .half_inputs = 1},
    {.op_type = "Where", .elementwise = true, .half_inputs = 3},
    {.op_type = "Xor", .elementwise = true},
    // ours
    {.op_type = "AttentionTraining", .domain = kCaesuraDomain, .work = Work::kAttention},
    {.op_type = "DropoutGrad", .domain = kCaesuraDomain, .device_rows = true},
    {.op_type = "FusedMatMul", .domain = kCaesuraDomain, .computes_in_half = true, .half_inputs = kAll, .work = Work::kProduct},
    {.op_type = "GeluGrad", .domain = kCaesuraDomain, .elementwise = true},
    {.op_type = "LayerNormalizationGrad", .domain = kCaesuraDomain, .rows = Rows::kAlongAxis, .row_sums = {1, 2}},
    {.op_type = "LogSoftmaxGrad", .domain = kCaesuraDomain, .rows = Rows::kAlongAxis},
    {.op_type = "RMSNormalizationGrad", .domain = kCaesuraDomain, .rows = Rows::kAlongAxis, .row_sums = {1}},
    {.op_type = "ReluGrad", .domain = kCaesuraDomain, .elementwise = true},
    {.op_type = "SigmoidGrad", .domain = kCaesuraDomain, .elementwise = true},
    {.op_type = "SoftmaxGrad", .domain = kCaesuraDomain, .rows = Rows::kAlongAxis},
    {.op_type = "SumTo", .domain = kCaesuraDomain, .rows = Rows::kSums, .row_sums = {0}},
    {.op_type = "TanhGrad", .domain = kCaesuraDomain, .elementwise = true},
  };
}
// clang-format on

}  // namespace

const std::vector<OpTraits>& AllOpTraits() {
  static const auto* table = new std::vector<OpTraits>(MakeTable());
  return *table;
}

const OpTraits& TraitsOf(const std::string& op_type, const std::string& domain) {
  using Index = std::unordered_map<std::string_view, const OpTraits*>;
  static const auto* indices = [] {
    auto* out = new std::unordered_map<std::string_view, Index>();
    for (const OpTraits& traits : AllOpTraits()) (*out)[traits.domain][traits.op_type] = &traits;
    return out;
  }();
  static const OpTraits kNothing;
  const auto index = indices->find(domain);
  if (index == indices->end()) return kNothing;
  const auto found = index->second.find(op_type);
  return found == index->second.end() ? kNothing : *found->second;
}

const OpTraits& TraitsOf(const Node& node) { return TraitsOf(node.op_type(), node.domain()); }

}  // namespace caesura
