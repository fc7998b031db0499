// SPDX-License-Identifier: Apache-2.0
// Models that no exporter writes: each is refused with its fault named, and none does harm.
#include "core/onnx/model_reader.h"

#include <fstream>
#include <limits>

#include <gtest/gtest.h>

#include "core/onnx/function_body.h"
#include "core/graph/graph_check.h"
#include "core/onnx/model_writer.h"
#include "tests/core/onnx/onnx_wire.h"
#include "tests/temporary_folder.h"

namespace caesura {
namespace {

using testing::Wire;
using testing::WithInitializer;

struct BadText {
  const char* name;
  const char* text;
  const char* expected;  // part of the message
};

class BadTextTest : public ::testing::TestWithParam<BadText> {};

TEST_P(BadTextTest, IsRefusedByName) {
  Result<Model> model = ParseModelText(GetParam().text);
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.status().message().find(GetParam().expected), std::string::npos)
      << model.status().ToString();
}

#define HEAD "<ir_version: 10, opset_import: [\"\" : 21]> g (float[2] x) => (float[2] y) "
constexpr BadText kBadTexts[] = {
    {"UndefinedName", HEAD "{ y = Add (x, w) }", "reads 'w', which nothing makes"},
    {"Cycle", HEAD "{ a = Add (x, b) b = Neg (a) y = Relu (a) }", "out of order or on a cycle"},
    {"MadeTwice", HEAD "{ y = Neg (x) y = Relu (x) }", "makes 'y', which is made already"},
    {"InputMadeAgain", HEAD "{ x = Neg (x) y = Relu (x) }", "makes 'x', which is made already"},
    {"OutputNotMade", HEAD "{ z = Neg (x) }", "puts out 'y', which nothing in it makes"},
    {"UnknownOpsTogether", HEAD "{ [one] a = Foo (x) [two] y = Bar (a) }",
     "[Foo 'one'] at opset 21\n  [Bar 'two']"},
    {"OpCameLater",
     "<ir_version: 10, opset_import: [\"\" : 10]> g (float[2] x) => (float[2] y) { y = Gelu (x) }",
     "[Gelu ''] at opset 10 (it came later)"},
    {"OpWithdrawn",
     "<ir_version: 10, opset_import: [\"\" : 13]> g (float[2] x, float[1] s) => (float y) { y = "
     "Upsample (x, s) }",
     "withdrawn in opset 10"},
    {"NewerOpset",
     "<ir_version: 10, opset_import: [\"\" : 99]> g (float[2] x) => (float[2] y) { y = Neg (x) }",
     "imports version 99 of the default domain"},
    {"OpsetZero",
     "<ir_version: 10, opset_import: [\"\" : 0]> g (float[2] x) => (float[2] y) { y = Neg (x) }",
     "imports version 0"},
    {"NewerIr",
     "<ir_version: 1000, opset_import: [\"\" : 21]> g (float[2] x) => (float[2] y) { y = Neg (x) }",
     "IR version 1000"},
    {"DomainNotImported", HEAD "{ y = my.Op (x) }", "'my' of [my::Op '']"},
    {"WrongElementTypes",
     "<ir_version: 10, opset_import: [\"\" : 21]> g (float[2] x, int64[2] i) => (float[2] y) { y = "
     "Add (x, i) }",
     "[Add 'Add']"},
    {"WrongDims",
     "<ir_version: 10, opset_import: [\"\" : 21]> g (float[2] x, float[3] i) => (float[2] y) { y = "
     "Add (x, i) }",
     "Incompatible dimensions"},
    {"OutputDeclaredOtherwise",
     "<ir_version: 10, opset_import: [\"\" : 21]> g (float[2] x) => (int64[2] y) { y = Neg (x) }",
     "declared as int64[2]"},
    {"MissingInput", HEAD "{ y = Add (x) }", "input"},
    {"UnknownAttribute", HEAD "{ y = Neg <sharpness = 3> (x) }", "sharpness"},
    {"MissingAttribute", HEAD "{ y = Concat (x, x) }", "axis"},
    {"AttributeOfOtherKind", HEAD "{ y = Concat <axis = \"one\"> (x) }", "axis"},
    {"ReferenceOutsideOfFunction", HEAD "{ y = Concat <axis : int = @a> (x) }",
     "refers to a function's attribute"},
    {"RecursiveFunction",
     "<ir_version: 10, opset_import: [\"\" : 21, \"f\" : 1]> g (float[2] x) => (float[2] y) { y = "
     "f.A (x) } "
     "<domain: \"f\", opset_import: [\"\" : 21, \"f\" : 1]> A (v) => (r) { r = f.A (v) }",
     "function A calls itself"},
    {"BodyReadsNothing",
     "<ir_version: 10, opset_import: [\"\" : 21]> g (bool c, float[2] x) => (float[2] y) { y = If "
     "(c) "
     "<then_branch = t () => "
     "(float[2] a) { a = Neg (q) }, else_branch = e () => (float[2] b) { b = Relu (x) }> }",
     "reads 'q'"},
    {"EinsumSign", HEAD "{ y = Einsum <equation = \"-\"> (x) }", "attribute 'equation'"},
    {"EinsumTwoEllipses", HEAD "{ y = Einsum <equation = \"......->...\"> (x) }",
     "attribute 'equation'"},
    {"NotAModel", "what is this?", "ParseError"},
};
#undef HEAD

INSTANTIATE_TEST_SUITE_P(Table, BadTextTest, ::testing::ValuesIn(kBadTexts),
                         [](const auto& row) { return row.param.name; });

struct BadTensor {
  const char* name;
  Wire tensor;
  const char* expected;
};

std::vector<BadTensor> BadTensors() {
  const std::string eight(8, '\0');
  Wire two_fields = testing::RawTensor("w", testing::kFloat, {2}, eight);
  two_fields.Float(4, 1).Float(4, 2);
  Wire wide = testing::TensorHead("w", 3, {1});
  wide.Int(5, 300);
  Wire segment = testing::RawTensor("w", testing::kFloat, {2}, eight);
  segment.Message(3, Wire().Int(1, 0).Int(2, 8));
  Wire strings = testing::RawTensor("w", testing::kString, {8}, eight);
  return {
      {"HugeInTinyFile", testing::TensorHead("w", testing::kFloat, {int64_t{1} << 29}),
       "needs 536870912 values"},
      {"HugeRaw", testing::RawTensor("w", testing::kFloat, {int64_t{1} << 29}, eight),
       "but 8 are stored"},
      {"DimsOverflow",
       testing::RawTensor("w", testing::kFloat, {int64_t{1} << 32, int64_t{1} << 32}, eight),
       "too large"},
      {"DimsWrapToEight", testing::RawTensor("w", testing::kFloat, {int64_t{1} << 62, 4, 2}, eight),
       "too large"},
      {"NegativeDim", testing::RawTensor("w", testing::kFloat, {-2}, eight), "negative dim"},
      {"MinimalDim",
       testing::RawTensor("w", testing::kFloat, {std::numeric_limits<int64_t>::min()}, eight),
       "negative dim"},
      {"ZeroTimesHuge", testing::RawTensor("w", testing::kFloat, {0, int64_t{1} << 62}, eight),
       "too large"},
      {"TooManyBytes", testing::RawTensor("w", testing::kFloat, {1}, eight), "but 8 are stored"},
      {"NoData", testing::TensorHead("w", testing::kFloat, {2}), "needs 2 values"},
      {"UndefinedType", testing::RawTensor("w", 0, {2}, eight), "element type 0"},
      {"UnknownType", testing::RawTensor("w", 77, {2}, eight), "element type 77"},
      {"NegativeType", testing::RawTensor("w", -1, {2}, eight), "element type -1"},
      {"TwoFields", two_fields, "elsewhere"},
      {"ValueTooWide", wide, "which its type cannot hold"},
      {"Segment", segment, "segments"},
      {"RawStrings", strings, "strings"},
      {"ExternalWithoutFolder", testing::ExternalTensor("w", {2}, "w.bin", "0", "8"), "no folder"},
  };
}

class BadTensorTest : public ::testing::TestWithParam<BadTensor> {};

TEST_P(BadTensorTest, IsRefusedByName) {
  Result<Model> model = ReadModelBytes(WithInitializer(GetParam().tensor));
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.status().message().find("'w'"), std::string::npos) << model.status().ToString();
  EXPECT_NE(model.status().message().find(GetParam().expected), std::string::npos)
      << model.status().ToString();
}

INSTANTIATE_TEST_SUITE_P(Table, BadTensorTest, ::testing::ValuesIn(BadTensors()),
                         [](const auto& row) { return row.param.name; });

TEST(BadModelTest, AllFaultyTensorsAreListed) {
  Wire parts;
  parts.Message(1, testing::NodeWire("Sum", {"x", "v", "w"}, {"y"}));
  parts.Message(5, testing::TensorHead("v", testing::kFloat, {2}))
      .Message(5, testing::TensorHead("w", testing::kFloat, {3}));
  Status status = ReadModelBytes(testing::ModelWire(testing::GraphWire(parts)).bytes()).status();
  EXPECT_NE(status.message().find("tensor 'v'"), std::string::npos) << status.ToString();
  EXPECT_NE(status.message().find("tensor 'w'"), std::string::npos) << status.ToString();
}

TEST(BadModelTest, BadSparseTensors) {
  auto read = [](std::vector<int64_t> dims, std::vector<int64_t> indices) {
    const auto count = static_cast<int64_t>(indices.size());
    Wire sparse;
    sparse.Message(1, testing::RawTensor("w", 1, {count},
                                         testing::Raw(std::vector<float>(indices.size(), 1.0f))));
    sparse.Message(2, testing::RawTensor("", 7, {count}, testing::Raw(indices)));
    for (int64_t dim : dims) sparse.Int(3, dim);
    Wire parts;
    parts.Message(1, testing::NodeWire("Add", {"x", "w"}, {"y"})).Message(15, sparse);
    return ReadModelBytes(testing::ModelWire(testing::GraphWire(parts)).bytes()).status();
  };
  EXPECT_TRUE(read({2}, {0, 1}).ok());
  EXPECT_NE(read({2}, {0, 2}).message().find("index outside"), std::string::npos);
  EXPECT_NE(read({2}, {-1, 1}).message().find("index outside"), std::string::npos);
  EXPECT_NE(read({int64_t{1} << 40}, {0, 1}).message().find("when dense"), std::string::npos);
  EXPECT_NE(read({int64_t{1} << 62, 8}, {0, 1}).message().find("too large"), std::string::npos);
  EXPECT_NE(read({-2}, {0}).message().find("negative dim"), std::string::npos);
}

// `depth` If nodes in each other.
Wire Nested(int depth) {
  Wire graph;
  graph.Bytes(2, "body").Message(12, testing::Info("y", testing::kFloat, {2}));
  if (depth == 0) return graph.Message(1, testing::NodeWire("Identity", {"x"}, {"y"}));
  Wire node = testing::NodeWire("If", {"c"}, {"y"});
  const Wire body = Nested(depth - 1);
  for (const char* name : {"then_branch", "else_branch"}) {
    node.Message(5, Wire().Bytes(1, name).Message(6, name[0] == 't' ? body : Nested(0)).Int(20, 5));
  }
  return graph.Message(1, node);
}

TEST(BadModelTest, DeepNestingIsRefused) {
  Wire top;
  auto model = [](int depth) {
    Wire graph = Nested(depth);
    graph.Message(11, testing::Info("x", testing::kFloat, {2}))
        .Message(11, testing::Info("c", 9, {}));
    return testing::ModelWire(graph).bytes();
  };
  // Names of bodies repeat on purpose: only the innermost depth matters here.
  for (int depth : {33, 100, 2000}) EXPECT_FALSE(ReadModelBytes(model(depth)).ok()) << depth;
  ReadOptions options;
  options.max_depth = 3;
  EXPECT_NE(ReadModelBytes(model(4), options).status().message().find("nested deeper than 3"),
            std::string::npos);
}

TEST(BadModelTest, FunctionsThatExplodeAreRefused) {
  // f0 calls f1 twice, f1 calls f2 twice, ...: 2^30 nodes from a few lines.
  std::string text =
      "<ir_version: 10, opset_import: [\"\" : 21, \"f\" : 1]> g (float[2] x) => (float[2] y) { y = "
      "f.F0 (x) }";
  for (int i = 0; i < 30; ++i) {
    const std::string next = i == 29 ? "Neg" : "f.F" + std::to_string(i + 1);
    text += " <domain: \"f\", opset_import: [\"\" : 21, \"f\" : 1]> F" + std::to_string(i) +
            " (v) => (r) { a = " + next + " (v) r = " + next + " (a) }";
  }
  Status status = ParseModelText(text).status();
  EXPECT_NE(status.message().find("more than 1048576 nodes"), std::string::npos)
      << status.ToString();
}

TEST(BadModelTest, LimitsAreNamed) {
  const std::string bytes =
      WithInitializer(testing::RawTensor("w", testing::kFloat, {2}, std::string(8, '\0')));
  ReadOptions options;
  options.max_model_bytes = 10;
  EXPECT_NE(ReadModelBytes(bytes, options).status().message().find("limit of 10"),
            std::string::npos);
  options = {};
  options.max_nodes = 0;
  EXPECT_NE(ReadModelBytes(bytes, options).status().message().find("more than 0 nodes"),
            std::string::npos);
  options = {};
  options.max_tensor_bytes = 7;
  EXPECT_NE(ReadModelBytes(bytes, options).status().message().find("more than 7 bytes"),
            std::string::npos);
}

// A file is read in pieces of a megabyte.
TEST(BadModelTest, FilesAreAsTheirBytes) {
  testing::TemporaryFolder folder;
  std::string numbers(3 << 20, '\0');
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<char>(i * 7 >> 10 & 63);
  const int64_t elements = static_cast<int64_t>(numbers.size() / 4);
  const std::string bytes =
      WithInitializer(testing::RawTensor("w", testing::kFloat, {elements, 1}, numbers));
  const auto read = [&](const std::string& text, const ReadOptions& options = {}) {
    const std::string path = folder.path("net.onnx");
    std::ofstream(path, std::ios::binary) << text;
    return ReadModel(path, options);
  };
  const Result<Model> model = read(bytes);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  const Tensor& w = *model->graph->Initializer(model->graph->FindValue("w"));
  EXPECT_EQ(std::string(w.data<char>(), w.bytes()), numbers);
  for (const size_t cut : {size_t{1}, size_t{1} << 20, bytes.size() - 1}) {
    EXPECT_FALSE(read(bytes.substr(0, cut)).ok()) << cut;
  }
  EXPECT_NE(read("").status().message().find("net.onnx: the model is empty"), std::string::npos);
  ReadOptions options;
  options.max_model_bytes = 10;
  EXPECT_NE(read(bytes, options).status().message().find("limit of 10"), std::string::npos);
}

TEST(BadModelTest, MissingPartsAreNamed) {
  EXPECT_FALSE(ReadModelBytes("").ok());
  EXPECT_NE(ReadModelBytes(Wire().Int(1, 10).Message(8, testing::Opset(21)).bytes())
                .status()
                .message()
                .find("no graph"),
            std::string::npos);
  Wire parts;
  parts.Message(1, testing::NodeWire("Neg", {"x"}, {"y"}));
  const std::string no_opset = Wire().Int(1, 10).Message(7, testing::GraphWire(parts)).bytes();
  EXPECT_NE(ReadModelBytes(no_opset).status().message().find("imports no opset"),
            std::string::npos);
  EXPECT_EQ(ReadModel("/nowhere/at/all.onnx").status().code(), StatusCode::kNotFound);
}

// A model with a bit of everything.
std::string RichModel() {
  Model model =
      ParseModelText(R"(<ir_version: 10, opset_import: ["" : 17, "f" : 1], producer_name: "test">
    g (float[N, 2] x, bool c, seq(int64[?]) s) => (float[N, ?] y, int64[?] t)
    <float[2, 3] w = {1, 2, 3, 4, 5, 6}, int64[1] k = {0}, string[2] names = {"a", "b"}> {
      h = MatMul (x, w)
      i = f.Twice (h)
      zero = Constant <value_int = 0> ()
      t = SequenceAt (s, zero)
      y = If (c) <then_branch = yes () => (float[N, 3] a) { a = Softmax <axis = 0> (i) },
                  else_branch = no () => (float[N, 3] b) { m = ReduceMean <axes = [0]> (h) b = Add (i, m) }>
    }
    <domain: "f", opset_import: ["" : 17]> Twice (v) => (r) { r = Add (v, v) })")
          .value();
  return SerializeModel(model).value();
}

// Whatever comes back: reading may not crash, and what is read must hold together.
void ReadAndCheck(const std::string& bytes) {
  Result<Model> model = ReadModelBytes(bytes);
  if (model.ok()) {
    EXPECT_TRUE(CheckGraph(*model->graph).ok());
  } else {
    EXPECT_FALSE(model.status().message().empty());
    EXPECT_NE(model.status().code(), StatusCode::kInternal) << model.status().ToString();
  }
}

TEST(BadModelTest, SurvivesTruncationAtEveryByte) {
  const std::string bytes = RichModel();
  for (size_t size = 0; size < bytes.size(); ++size) ReadAndCheck(bytes.substr(0, size));
}

TEST(BadModelTest, SurvivesFlippedBits) {
  const std::string bytes = RichModel();
  uint64_t state = 12345;
  auto random = [&](size_t bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>((state >> 33) % bound);
  };
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = bytes;
    for (size_t flips = 1 + random(3); flips > 0; --flips)
      damaged[random(damaged.size())] ^= static_cast<char>(1 << random(8));
    ReadAndCheck(damaged);
  }
}

// A graph input "x" of a type that the IR does not have.
std::string WithMapInput(const Wire& node) {
  const Wire map = Wire().Message(
      5,
      Wire().Int(1, testing::kInt64).Message(2, Wire().Message(1, Wire().Int(1, testing::kFloat))));
  Wire graph;
  graph.Message(1, node)
      .Bytes(2, "g")
      .Message(11, Wire().Bytes(1, "x").Message(2, map))
      .Message(12, Wire().Bytes(1, "y"));
  return testing::ModelWire(graph).bytes();
}

// onnx's functions follow the type of an input that is there.
TEST(BadModelTest, InputsOfUnknownTypesAreNoAbsentOnes) {
  Wire match = testing::NodeWire("RegexFullMatch", {"x"}, {"y"});
  match.Message(5, Wire().Bytes(1, "pattern").Bytes(4, "a").Int(20, 3));
  Wire body;
  body.Bytes(2, "body").Message(1, testing::NodeWire("Identity", {"u"}, {"v"}));
  body.Message(11, testing::Info("u", testing::kFloat, {2}))
      .Message(12, testing::Info("v", testing::kFloat, {2}));
  Wire map = testing::NodeWire("SequenceMap", {"x"}, {"y"});
  map.Message(5, Wire().Bytes(1, "body").Message(6, body).Int(20, 5));
  for (const Wire& node : {match, map}) {
    Result<Model> model =
        ReadModelBytes(WithMapInput(node));  // refused or read: not what this is about
    if (!model.ok()) continue;
    static_cast<void>(ExpandFunctionBody(*model->graph, model->graph->nodes()[0].get()));
  }
}

}  // namespace
}  // namespace caesura
