// SPDX-License-Identifier: Apache-2.0
#include "core/graph/attribute_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/graph/graph.h"
#include "core/graph/graph_text.h"
#include "core/graph/shape_inference.h"
#include "core/load/onnx_proto.h"
#include "onnx/defs/schema.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kExtremes[] = {kLeast, -(int64_t{1} << 31) - 1, -(int64_t{1} << 31), -1, 0, (int64_t{1} << 31) - 1,
                                 int64_t{1} << 31, int64_t{1} << 32, int64_t{1} << 62, kMost};

TEST(AttributeLimits, AreAskedForEveryInteger) {
  EXPECT_EQ(AttributeFault("", {{"axis", int64_t{-1}}, {"axes", std::vector<int64_t>{0, 1}}, {"alpha", 1.0f}}), "");
  EXPECT_THAT(AttributeFault("", {{"axis", kMost}}),
              HasSubstr("attribute 'axis': expected -1073741824 to 1073741824, got 9223372036854775807"));
  EXPECT_THAT(AttributeFault("ai.onnx.ml", {{"ngram_counts", std::vector<int64_t>{0, kLeast}}}), HasSubstr("got -9223"));
  EXPECT_THAT(AttributeFault("", {{"batch_dims", int64_t{-1}}}), HasSubstr("expected 0 to"));
  EXPECT_THAT(AttributeFault("", {{"strides", std::vector<int64_t>{1, 0}}}), HasSubstr("expected 1 to"));
  EXPECT_THAT(AttributeFault(kCaesuraDomain, {{"axis", kMost}}), HasSubstr("axis"));
}

// Labels, vocabularies and ends of ranges are compared, not calculated with; a user's op means what it wants.
TEST(AttributeLimits, LeaveValuesAndUsersAlone) {
  EXPECT_EQ(AttributeFault("ai.onnx.ml", {{"keys_int64s", std::vector<int64_t>{kLeast, kMost}}}), "");
  EXPECT_EQ(AttributeFault("", {{"value_int", kMost}, {"end", kMost}, {"ignore_index", kLeast}}), "");
  EXPECT_EQ(AttributeFault("my.domain", {{"axis", kMost}}), "");
}

TEST(AttributeLimits, AreCheckedWhenAModelIsRead) {
  const Status status = ParseModelText("<ir_version: 10, opset_import: [\"\" : 9]> g (float[2,3] x) => (float[N,M] y) "
                                       "{ [n] y = Slice <starts = [0], ends = [1], axes = [9223372036854775807]> (x) }")
                            .status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidModel);
  EXPECT_THAT(status.message(), HasSubstr("[Slice 'n'] attribute 'axes'"));
}

// The types that the op takes at its inputs, first ones first; tensors of numbers and the like only.
ValueType TypeOf(const onnx::OpSchema::FormalParameter& parameter, int rank) {
  for (const std::string* name : parameter.GetTypes()) {
    onnx::TypeProto proto = onnx::Utils::DataTypeUtils::ToTypeProto(name);
    if (!proto.has_tensor_type()) continue;
    ValueType type = TypeFromProto(proto);
    type.shape.emplace();
    for (int d = 0; d < rank; ++d) type.shape->push_back(Dim{2, ""});
    return type;
  }
  return {};
}

// onnx's inference of every version of every op, with every integer attribute at every extreme, for inputs of some ranks, once
// more with integer inputs that are known to be extreme. Whatever comes out, it comes back (sanitizers watch).
void InferWith(const onnx::OpSchema& schema, int rank, const std::string& attribute, const Attribute& value, int64_t constant) {
  Graph graph("g");
  std::vector<Value*> inputs, outputs;
  for (size_t i = 0; i < schema.inputs().size(); ++i) {
    const ValueType type = TypeOf(schema.inputs()[i], i == 0 ? rank : constant == 0 ? rank : 1);
    const bool known = i > 0 && constant != 0 && type.is_tensor() && type.dtype == DType::kInt64;
    inputs.push_back(known ? graph.AddInitializer("i" + std::to_string(i), Tensor::Of<int64_t>({2}, {constant, 1}))
                           : graph.AddInput("i" + std::to_string(i), type));
  }
  for (size_t i = 0; i < schema.outputs().size(); ++i) outputs.push_back(graph.AddValue("o" + std::to_string(i)));
  AttributeMap attributes;
  for (const auto& [name, row] : schema.attributes()) {
    if (!row.required || name == attribute) continue;
    if (row.type == onnx::AttributeProto::INT) attributes[name] = int64_t{1};
    if (row.type == onnx::AttributeProto::INTS) attributes[name] = std::vector<int64_t>{1, 1};
    if (row.type == onnx::AttributeProto::STRING) attributes[name] = std::string("linear");
    if (row.type == onnx::AttributeProto::GRAPH) return;
  }
  if (!attribute.empty()) attributes[attribute] = value;
  Node* node = graph.AddNode(schema.Name(), inputs, outputs, std::move(attributes), schema.domain(), "n");
  node->set_since_version(schema.SinceVersion());
  static_cast<void>(InferNodeTypes(graph, node));
}

TEST(AttributeLimits, GuardOnnxInference) {
  int count = 0;
  for (const onnx::OpSchema& schema : onnx::OpSchemaRegistry::get_all_schemas_with_history()) {
    for (int rank = 0; rank <= 4; ++rank) {
      for (const int64_t extreme : kExtremes) {
        for (const auto& [name, row] : schema.attributes()) {
          if (row.type == onnx::AttributeProto::INT) InferWith(schema, rank, name, extreme, 0);
          if (row.type == onnx::AttributeProto::INTS) InferWith(schema, rank, name, std::vector<int64_t>{extreme, extreme}, 0);
          count += row.type == onnx::AttributeProto::INT || row.type == onnx::AttributeProto::INTS;
        }
        InferWith(schema, rank, "", {}, extreme);
      }
    }
  }
  EXPECT_GT(count, 20000);
}

}  // namespace
}  // namespace caesura
