// SPDX-License-Identifier: Apache-2.0
// Model ops, with the runtime "test" of tests/core/plugin/test_ops.c, whose models multiply by the
// number that their bytes are.
#include "core/custom_ops/model_op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "core/custom_ops/model_types.h"
#include "core/onnx/model_reader.h"
#include "core/onnx/model_writer.h"
#include "core/plugin/plugin_library.h"
#include "core/session/session.h"
#include "tests/temporary_folder.h"
#include "tests/tensors.h"
#include "tests/test_paths.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<CaesuraModelRuntime> TestRuntimes() {
  return LoadPluginLibrary(testing::kTestOpsC).value().model_runtimes;
}

CustomOps TestOps() {
  CustomOps ops;
  ops.model_runtimes = TestRuntimes();
  return ops;
}

// "times N" as the bytes of an attribute.
std::string Bytes(const std::string& text) {
  std::string out = "uint8[" + std::to_string(text.size()) + "] {";
  for (size_t i = 0; i < text.size(); ++i)
    out += (i == 0 ? "" : ", ") + std::to_string(static_cast<int>(text[i]));
  return out + "}";
}

constexpr char kTypes[] =
    "input_names = [\"x\"], input_types = [\"float32[N]\"], output_names = [\"y\"], output_types = "
    "[\"float32[N]\"]";

std::string NodeText(const std::string& name, const std::string& in, const std::string& out,
                     const std::string& attributes) {
  return "[" + name + "] " + out + " = ai.caesura.ModelOp <runtime = \"test\", " + attributes +
         ", " + kTypes + "> (" + in + ") ";
}

Model OpModel(const std::string& body) {
  auto model =
      ParseModelText("<ir_version: 10, opset_import: [\"\" : 23, \"ai.caesura\" : 1]> g " + body);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return *std::move(model);
}

Result<std::unique_ptr<Session>> MakeModelOpSession(Model model, CustomOps ops = TestOps()) {
  SessionOptions options;
  options.custom_ops = std::move(ops);
  return Session::Create(std::move(model), std::move(options));
}

Result<std::vector<float>> Compute(const Result<std::unique_ptr<Session>>& session,
                                   const std::vector<float>& x) {
  if (!session.ok()) return session.status();
  auto results = (*session)->Run({{"x", FloatVector(x)}});
  if (!results.ok()) return results.status();
  return (*results)[0].tensor().ToVector<float>();
}

Model Chain() {
  return OpModel("(float[N] x) => (float[N] y) { " +
                 NodeText("a", "x", "m", "model = " + Bytes("3")) +
                 NodeText("b", "m", "y", "model = " + Bytes("5")) + "}");
}

TEST(ModelOps, RunAModelAsANode) {
  auto session = MakeModelOpSession(Chain());
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  EXPECT_THAT(Compute(session, {1, 2}).value(), ElementsAre(15, 30));
  EXPECT_THAT(Compute(session, {1, 2, 3}).value(), ElementsAre(15, 30, 45));
  EXPECT_EQ((*session)->outputs()[0]->type().ToString(), "float32[N]");
}

TEST(ModelOps, NodesHaveOptionsOfTheirOwn) {
  CustomOps ops = TestOps();
  ops.options.ForNode("b").Update("factor", "7");
  EXPECT_THAT(Compute(MakeModelOpSession(Chain(), ops), {1}).value(), ElementsAre(21));
  EXPECT_THAT(Compute(MakeModelOpSession(Chain()), {1}).value(), ElementsAre(15))
      << "another session";
  ops.options.ForNode("b").Update("tempo", "7");
  EXPECT_THAT(MakeModelOpSession(Chain(), ops).status().message(),
              HasSubstr("[ai.caesura::ModelOp 'b'] runtime 'test': there is no such option; known "
                        "are: factor, sizeless"));
}

TEST(ModelOps, SizesThatShowOnlyInTheRun) {
  CustomOps ops = TestOps();
  ops.options.ForOp(kModelOp, kCaesuraDomain).Update("sizeless", "1");
  Model model = OpModel(
      "(float[N] x) => (float[M] y) { [a] y = ai.caesura.ModelOp <runtime = \"test\", model = " +
      Bytes("2") +
      ", input_names = [\"x\"], input_types = [\"float32[?]\"], output_names = [\"y\"],"
      " output_types = [\"float32[?]\"]> (x) }");
  auto session = MakeModelOpSession(std::move(model), ops);
  EXPECT_THAT(Compute(session, {1, 2}).value(), ElementsAre(2, 4));
  EXPECT_THAT(Compute(session, {3}).value(), ElementsAre(6));
}

TEST(ModelOps, RunsShareNoState) {
  auto session = MakeModelOpSession(Chain());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const float x = static_cast<float>(t * 1000 + i);
        auto y = Compute(session, std::vector<float>(1 + i % 3, x));
        ASSERT_TRUE(y.ok()) << y.status().ToString();
        ASSERT_EQ((*y)[0], 15 * x);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ModelOps, WhatIsStatedIsChecked) {
  auto error = [](const std::string& attributes, const std::string& input = "float[N] x") {
    return MakeModelOpSession(OpModel("(" + input +
                                      ") => (float[N] y) { [a] y = ai.caesura.ModelOp <" +
                                      attributes + "> (x) }"))
        .status()
        .message();
  };
  const std::string model = "model = " + Bytes("3"), types = kTypes;
  EXPECT_THAT(error("runtime = \"test\", " + types), HasSubstr("has neither model nor model_file"));
  EXPECT_THAT(error("runtime = \"test\", " + model), HasSubstr("has no strings 'input_names'"));
  EXPECT_THAT(error("runtime = \"none\", " + model + ", " + types),
              HasSubstr("there is no runtime 'none'"));
  EXPECT_THAT(error("runtime = \"../evil\", " + model + ", " + types),
              HasSubstr("expected letters, digits and '_'"));
  EXPECT_THAT(error("runtime = \"test\", model = " + Bytes("!") + ", " + types),
              HasSubstr("this is no number"));
  EXPECT_THAT(
      error("runtime = \"test\", " + model +
            ", input_names = [\"z\"], input_types = [\"float32[N]\"], output_names = [\"y\"],"
            " output_types = [\"float32[N]\"]"),
      HasSubstr("states the inputs z float32[N], but its model has x float32[d0]"));
  EXPECT_THAT(
      error("runtime = \"test\", " + model +
            ", input_names = [\"x\"], input_types = [\"float32[N]\"], output_names = [\"y\"],"
            " output_types = [\"int64[N]\"]"),
      HasSubstr("declared as float32[N]"));
  EXPECT_THAT(
      error("runtime = \"test\", " + model +
            ", input_names = [\"x\"], input_types = [\"float33[N]\"], output_names = [\"y\"],"
            " output_types = [\"float32[N]\"]"),
      HasSubstr("expected an element type and sizes"));
  EXPECT_THAT(error("runtime = \"test\", " + model + ", " + types, "double[N] x"),
              HasSubstr("is float32[N] in the model, got float64[N]"));
}

TEST(ModelOps, FilesAreLookedForBeneathTheModelAlone) {
  const testing::TemporaryFolder folder;
  std::ofstream(folder.path() + "/factor.txt") << "4";
  std::filesystem::create_directory(folder.path() + "/inner");
  auto at = [&](const std::string& place, const std::string& file) {
    Model model = OpModel("(float[N] x) => (float[N] y) { " +
                          NodeText("a", "x", "y", "model_file = \"" + file + "\"") + "}");
    EXPECT_TRUE(WriteModel(model, folder.path() + place).ok());
    return Compute(MakeModelOpSession(ReadModel(folder.path() + place).value()), {1});
  };
  EXPECT_THAT(at("/m.onnx", "factor.txt").value(), ElementsAre(4));
  EXPECT_FALSE(at("/inner/m.onnx", "../factor.txt").ok());
  EXPECT_FALSE(at("/m.onnx", folder.path() + "/factor.txt").ok());
  EXPECT_FALSE(at("/m.onnx", "nothing.txt").ok());
  EXPECT_THAT(
      MakeModelOpSession(OpModel("(float[N] x) => (float[N] y) { " +
                                 NodeText("a", "x", "y", "model_file = \"factor.txt\"") + "}"))
          .status()
          .message(),
      HasSubstr("was not read from a folder"));
}

TEST(ModelOps, WrapWritesAModelOfOneNode) {
  WrapOptions wrap;
  wrap.runtime = "test";
  wrap.model_bytes = "6";
  wrap.options = OptionSet{{"factor", "8"}};
  auto model = WrapModel(wrap, TestRuntimes());
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  auto again = ReadModelBytes(SerializeModel(*model).value());
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->graph->inputs()[0]->type().ToString(), "float32[d0]");
  EXPECT_THAT(Compute(MakeModelOpSession(again->Clone()), {1}).value(), ElementsAre(8))
      << "by the option that the node brings along";
  CustomOps ops = TestOps();
  ops.options.ForNode("model").Update("factor", "9");
  EXPECT_THAT(Compute(MakeModelOpSession(*std::move(again), ops), {1}).value(), ElementsAre(9))
      << "the session's word counts more";
  wrap.inputs = {{"q", "float32[N]"}};
  EXPECT_THAT(WrapModel(wrap, TestRuntimes()).status().message(),
              HasSubstr("the model has no input 'q'; it has: x"));
  wrap.inputs = {{"x", "int64[N]"}};
  EXPECT_THAT(WrapModel(wrap, TestRuntimes()).status().message(),
              HasSubstr("input 'x' is float32[d0] in the model, not int64[N]"));
}

// A nested ONNX model, by the plug-in that is found by name.
TEST(ModelOps, RunNestedModels) {
  if (FindPluginLibrary("caesura_runtime_caesura").find('/') == std::string::npos)
    GTEST_SKIP() << "built without runtimes";
  WrapOptions wrap;
  wrap.runtime = "caesura";
  wrap.model_bytes =
      SerializeModel(OpModel("(float[N,2] x, int64[K] i) => (float[K,2] rows, float s)"
                             "{ rows = Gather (x, i) s = ReduceSum <keepdims = 0> (x) }"))
          .value();
  auto model = WrapModel(wrap);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ(model->graph->outputs()[0]->type().ToString(), "float32[d1, 2]");
  auto session = MakeModelOpSession(*std::move(model), {});
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  const NamedValues feeds = {{"x", Tensor::Of<float>(Shape{2, 2}, {1, 2, 3, 4})},
                             {"i", Tensor::Of<int64_t>(Shape{3}, {1, 1, 0})}};
  auto results = (*session)->Run(feeds).value();
  EXPECT_THAT(results[0].tensor().ToVector<float>(), ElementsAre(3, 4, 3, 4, 1, 2));
  EXPECT_THAT(results[1].tensor().ToVector<float>(), ElementsAre(10));
  wrap.options = OptionSet{{"thread", "1"}};
  EXPECT_THAT(WrapModel(wrap).status().message(),
              HasSubstr("no option 'thread'; known are: threads"));
}

TEST(ModelTypes, AreReadAsTheyAreWritten) {
  for (const char* text :
       {"float32[N, 64]", "int64[]", "bool[?, 2]", "float16[...]", "uint8[batch.size, 0]"}) {
    EXPECT_EQ(ParseTensorType(text).value().ToString(), text);
  }
  for (const char* text : {"", "float32", "float33[1]", "float32[1", "float32[1x]", "float32[,]",
                           "float32[1,,2]", "float32[-1]"}) {
    EXPECT_FALSE(ParseTensorType(text).ok()) << text;
  }
}

}  // namespace
}  // namespace caesura
