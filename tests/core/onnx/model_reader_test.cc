// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/model_reader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/graph/graph_check.h"
#include "core/onnx/model_writer.h"
#include "tests/core/onnx/onnx_wire.h"

namespace caesura {
namespace {

using testing::Wire;
using testing::WithInitializer;

// A Constant with the tensor.
Result<Tensor> ReadTensor(const Wire& tensor) {
  Wire attribute, node = testing::NodeWire("Constant", {}, {"c"});
  attribute.Bytes(1, "value").Message(5, tensor).Int(20, 4);
  node.Message(5, attribute);
  Wire parts;
  parts.Message(1, node).Message(1, testing::NodeWire("Identity", {"x"}, {"y"}));
  Result<Model> model =
      ReadModelBytes(testing::ModelWire(testing::GraphWire(parts), 25, 14).bytes());
  if (!model.ok()) return model.status();
  return *model->graph->FindValue("c")->producer()->FindAttr<Tensor>("value");
}

TEST(ModelReaderTest, ReadsAModel) {
  const std::string w = testing::Raw<float>({1, 2});
  Model model =
      ReadModelBytes(WithInitializer(testing::RawTensor("w", testing::kFloat, {2}, w))).value();
  ASSERT_EQ(model.graph->nodes().size(), 1u);
  const Node& add = *model.graph->nodes()[0];
  EXPECT_EQ(add.name(), "add");
  EXPECT_EQ(add.since_version(), 14);
  EXPECT_EQ(model.graph->Initializer(add.input(1))->ToVector<float>(), (std::vector<float>{1, 2}));
  EXPECT_EQ(add.output(0)->type().ToString(), "float32[2]");
  EXPECT_TRUE(CheckGraph(*model.graph).ok());
}

TEST(ModelReaderTest, ReadsEveryElementType) {
  const std::string zeros(64, '\0');
  for (int type = 1; type < kDTypeCount; ++type) {
    const auto dtype = static_cast<DType>(type);
    if (dtype == DType::kString) continue;
    const size_t bytes = (3 * static_cast<size_t>(DTypeFileBits(dtype)) + 7) / 8;
    Result<Tensor> tensor = ReadTensor(testing::RawTensor("t", type, {3}, zeros.substr(0, bytes)));
    ASSERT_TRUE(tensor.ok()) << DTypeName(dtype) << ": " << tensor.status().ToString();
    EXPECT_EQ(tensor->dtype(), dtype);
    EXPECT_EQ(tensor->shape(), Shape{3});
    Result<Tensor> longer =
        ReadTensor(testing::RawTensor("t", type, {3}, zeros.substr(0, bytes + 1)));
    EXPECT_FALSE(longer.ok()) << DTypeName(dtype);
  }
}

TEST(ModelReaderTest, UnpacksSmallIntegers) {
  Tensor int4 = ReadTensor(testing::RawTensor("t", 22, {3}, "\xf7\x08")).value();  // 7, -1, -8
  EXPECT_EQ(std::vector<int8_t>(int4.data<int8_t>(), int4.data<int8_t>() + 3),
            (std::vector<int8_t>{7, -1, -8}));
  Tensor uint4 = ReadTensor(testing::RawTensor("t", 21, {3}, "\xf7\x08")).value();
  EXPECT_EQ(std::vector<uint8_t>(uint4.data<uint8_t>(), uint4.data<uint8_t>() + 3),
            (std::vector<uint8_t>{7, 15, 8}));
  Tensor int2 =
      ReadTensor(testing::RawTensor("t", 26, {5}, "\xe4\x01")).value();  // 0, 1, -2, -1, 1
  EXPECT_EQ(std::vector<int8_t>(int2.data<int8_t>(), int2.data<int8_t>() + 5),
            (std::vector<int8_t>{0, 1, -2, -1, 1}));
  // As int32_data: a byte in each entry.
  Wire typed = testing::TensorHead("t", 22, {3});
  typed.Int(5, 0xf7).Int(5, 0x08);
  EXPECT_EQ(ReadTensor(typed).value().data<int8_t>()[2], -8);
}

TEST(ModelReaderTest, ReadsTypedFields) {
  Wire halves = testing::TensorHead("t", 10, {2});
  halves.Int(5, 0x3c00).Int(5, 0xc000);
  EXPECT_EQ(ReadTensor(halves).value().ToVector<float>(), (std::vector<float>{1, -2}));
  Wire strings = testing::TensorHead("t", testing::kString, {2});
  strings.Bytes(6, "one").Bytes(6, "");
  EXPECT_EQ(ReadTensor(strings).value().data<std::string>()[0], "one");
  Wire floats = testing::TensorHead("t", testing::kFloat, {2});
  floats.Float(4, 1.5f).Float(4, 2);
  EXPECT_EQ(ReadTensor(floats).value().ToVector<float>(), (std::vector<float>{1.5f, 2}));
  Wire truth = testing::RawTensor("t", 9, {3}, std::string("\0\1\7", 3));
  EXPECT_EQ(ReadTensor(truth).value().data<uint8_t>()[2], 1) << "a bool is 0 or 1 in memory";
}

TEST(ModelReaderTest, MakesSparseInitializersDense) {
  const std::string values = testing::Raw<float>({5, 7}), indices = testing::Raw<int64_t>({1, 3});
  Wire sparse;
  sparse.Message(1, testing::RawTensor("w", testing::kFloat, {2}, values));
  sparse.Message(2, testing::RawTensor("", testing::kInt64, {2}, indices)).Int(3, 2).Int(3, 2);
  Wire parts;
  parts.Message(1, testing::NodeWire("Add", {"x", "w"}, {"y"})).Message(15, sparse);
  Wire graph;
  graph.Bytes(2, "g")
      .Message(11, testing::Info("x", 1, {2, 2}))
      .Message(12, testing::Info("y", 1, {2, 2}))
      .Append(parts);
  Model model = ReadModelBytes(testing::ModelWire(graph).bytes()).value();
  EXPECT_EQ(model.graph->Initializer(model.graph->FindValue("w"))->ToVector<float>(),
            (std::vector<float>{0, 5, 0, 7}));
}

TEST(ModelReaderTest, InlinesFunctionsWithTheirOwnOpsets) {
  // The function is written for opset 12, where axes were an attribute; its attribute has a
  // default.
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 21, "my" : 1]>
    g (float[2, 3] x) => (float[2] a, float[2] b) {
      [first] a = my.Norm (x)
      [second] b = my.Norm <power: float = 3.0> (x)
    }
    <domain: "my", opset_import: ["" : 12]>
    Norm <power: float = 2.0> (v) => (r) {
      p = Constant <value_float: float = @power> ()
      q = Pow (v, p)
      s = ReduceSum <axes = [1], keepdims = 0> (q)
      r = Sqrt (s)
    })")
                    .value();
  EXPECT_TRUE(CheckGraph(*model.graph).ok());
  int sums = 0;
  for (const auto& node : model.graph->nodes()) {
    EXPECT_TRUE(node->domain().empty());
    EXPECT_EQ(
        node->name().compare(0, 6, "first/") == 0 || node->name().compare(0, 7, "second/") == 0,
        true)
        << node->name();
    if (!node->Is("ReduceSum")) continue;
    ++sums;
    EXPECT_FALSE(node->HasAttribute("axes"));
    EXPECT_EQ(node->inputs().size(), 2u);
  }
  EXPECT_EQ(sums, 2);
  EXPECT_EQ(model.graph->outputs()[0]->name(), "a");
  EXPECT_EQ(model.graph->FindValue("second/p")
                ->producer()
                ->FindAttr<Tensor>("value")
                ->ToVector<float>()[0],
            3.0f);
  EXPECT_EQ(model.graph->FindValue("first/p")
                ->producer()
                ->FindAttr<Tensor>("value")
                ->ToVector<float>()[0],
            2.0f);
}

TEST(ModelReaderTest, FunctionsMayPassInputsThrough) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 21, "my" : 1]>
    g (float[2] x) => (float[2] a, float[2] b) { a, b = my.Both (x) }
    <domain: "my", opset_import: ["" : 21]> Both (v) => (v, n) { n = Neg (v) })")
                    .value();
  EXPECT_TRUE(CheckGraph(*model.graph).ok());
  EXPECT_EQ(model.graph->nodes().size(), 2u);  // Neg and a copy
}

TEST(ModelReaderTest, KeepsWhereNodesCameFrom) {
  Wire node = testing::NodeWire("Relu", {"x"}, {"y"}, "node_relu");
  node.Message(
      9,
      testing::Entry(
          "namespace",
          ": main.Net/blocks.0: main.Block/blocks.0.act: torch.nn.ReLU/relu: aten.relu.default"));
  node.Message(
      9,
      testing::Entry(
          "pkg.torch.onnx.stack_trace",
          "File \"/home/me/net.py\", line 12, in forward\n    x = self.act(x)\n  File "
          "\"/venv/lib/site-packages/torch/nn/act.py\", line 7, in forward\n    return relu(x)"));
  Wire parts;
  parts.Message(1, node);
  Model model = ReadModelBytes(testing::ModelWire(testing::GraphWire(parts)).bytes()).value();
  EXPECT_EQ(model.graph->nodes()[0]->source(),
            "blocks.0.act (torch.nn.ReLU) at /home/me/net.py:12");
}

// The notes of torch.onnx.export about a module's tensors, and their fate when the model is
// written again.
TEST(ModelReaderTest, KnowsAModulesBuffers) {
  const std::string kind = "pkg.torch.export.graph_signature.InputSpec.kind";
  Wire parts;
  parts.Message(1, testing::NodeWire("Sum", {"x", "weight", "cos", "constant", "turned", "mask"},
                                     {"y"}, "sum"));
  for (const auto& [name, is] :
       {std::pair("weight", "PARAMETER"), {"cos", "BUFFER"}, {"constant", "CONSTANT_TENSOR"}}) {
    parts.Message(5, testing::RawTensor(name, testing::kFloat, {2}, testing::Raw<float>({1, 2})));
    parts.Message(13,
                  testing::Info(name, testing::kFloat, {2}).Message(4, testing::Entry(kind, is)));
  }
  for (const auto& [name, from] : {std::pair("turned", "['layer.weight', 'perm']"),
                                   {"mask", "['layer.inv_freq', 'le', 'where']"}}) {
    parts.Message(5, testing::RawTensor(name, testing::kFloat, {2}, testing::Raw<float>({1, 2})));
    const auto entry = testing::Entry("pkg.onnxscript.optimizer.folded_from", from);
    parts.Message(13, testing::Info(name, testing::kFloat, {2}).Message(4, entry));
  }
  const char* signature =
      "# inputs\np_w: PARAMETER target='layer.weight'\nb_f: BUFFER target='layer.inv_freq'\nx: '";
  parts.Message(16, testing::Entry("pkg.torch.export.ExportedProgram.graph_signature", signature));
  const Model model = ReadModelBytes(testing::ModelWire(testing::GraphWire(parts)).bytes()).value();
  const std::unordered_set<std::string> expected = {"cos", "constant", "mask"},
                                        folded = {"turned", "mask"};
  EXPECT_EQ(MarkedBuffers(model), expected);
  EXPECT_EQ(FoldedInitializers(model), folded);
  const Model again = ReadModelBytes(SerializeModel(model).value()).value();
  EXPECT_EQ(MarkedBuffers(again), expected);
  EXPECT_EQ(FoldedInitializers(again), folded);
  Model other = model.Clone();
  for (const char* text : {"", "[1, {}]", "[[", "{\"a\": 1}"}) {
    other.metadata["ai.caesura.buffers"] = text;
    EXPECT_TRUE(MarkedBuffers(other).empty()) << text;
  }
}

TEST(ModelReaderTest, OldModelsListInitializersAsInputs) {
  Wire graph;
  graph.Bytes(2, "g")
      .Message(11, testing::Info("x", 1, {2}))
      .Message(11, testing::Info("w", 1, {2}));
  graph.Message(12, testing::Info("y", 1, {2}))
      .Message(1, testing::NodeWire("Add", {"x", "w"}, {"y"}));
  graph.Message(5, testing::RawTensor("w", 1, {2}, testing::Raw<float>({1, 2})));
  Model old_model = ReadModelBytes(testing::ModelWire(graph, 7, 3).bytes()).value();
  EXPECT_EQ(old_model.graph->inputs().size(), 1u);
  Model new_model = ReadModelBytes(testing::ModelWire(graph, 7, 4).bytes()).value();
  EXPECT_EQ(new_model.graph->inputs().size(), 2u);
}

TEST(ModelReaderTest, OutputsNeedNoType) {
  Model model =
      ParseModelText(
          "<ir_version: 10, opset_import: [\"\" : 21]> g (int64[3] x) => (y) { y = Neg (x) }")
          .value();
  EXPECT_EQ(model.graph->outputs()[0]->type().ToString(), "int64[3]");
}

TEST(ModelReaderTest, UnknownDomainsAreAllowed) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 21, "com.example" : 7]>
    g (float[2] x) => (float[2] y) { h = com.example.Magic <strength = 3> (x) y = Relu (h) })")
                    .value();
  EXPECT_EQ(model.graph->nodes()[0]->domain(), "com.example");
  EXPECT_EQ(model.graph->nodes()[0]->since_version(), 0);
}

}  // namespace
}  // namespace caesura
