// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/model_reader.h"

#include <gtest/gtest.h>

namespace caesura {
namespace {

TEST(GraphTextTest, ReadsWhatItWrites) {
  const char* text = R"(<ir_version: 10, opset_import: ["" : 23], producer_name: "me">
    net (float[N, 4] x) => (float[N, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
      [first] h = MatMul (x, w)
      y = LeakyRelu <alpha = 0.5> (h)
    })";
  Model model = ParseModelText(text).value();
  EXPECT_EQ(model.graph->name(), "net");
  EXPECT_EQ(model.producer, "me");
  EXPECT_EQ(model.graph->nodes()[0]->name(), "first");
  EXPECT_FLOAT_EQ(model.graph->nodes()[1]->Attr<float>("alpha", 0), 0.5f);
  EXPECT_EQ(model.graph->FindValue("h")->type().ToString(), "float32[N, 2]");
  const std::string written = ModelText(model);
  EXPECT_EQ(ModelText(ParseModelText(written).value()), written);
}

TEST(GraphTextTest, CanLeaveOpsetsAlone) {
  const char* text = R"(<ir_version: 7, opset_import: ["" : 11]>
    g (float[2, 3] x) => (float[2] y) { y = ReduceSum <axes = [1], keepdims = 0> (x) })";
  TextOptions options;
  options.normalise_opsets = false;
  Model old_model = ParseModelText(text, options).value();
  EXPECT_EQ(old_model.graph->nodes()[0]->since_version(), 11);
  EXPECT_EQ(old_model.opsets.at(""), 11);
  EXPECT_TRUE(old_model.graph->nodes()[0]->HasAttribute("axes"));
  EXPECT_EQ(old_model.graph->FindValue("y")->type().ToString(), "float32[2]");
  Model new_model = ParseModelText(text).value();
  EXPECT_EQ(new_model.graph->FindValue("y")->producer()->since_version(), 13);
}

TEST(GraphTextTest, TellsWhereTheTextIsWrong) {
  Status status = ParseModelText(
                      "<ir_version: 10, opset_import: [\"\" : 23]> g (float[2] x) => (float[2] y) "
                      "{ y = Neg x }")
                      .status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidModel);
  EXPECT_NE(status.message().find("position"), std::string::npos) << status.ToString();
}

TEST(GraphTextTest, RefusesBracketsWithoutEnd) {
  EXPECT_FALSE(ParseModelText(std::string(100000, '<')).ok());
  EXPECT_FALSE(ParseModelText("g (" + std::string(100000, '(') + ")").ok());
}

}  // namespace
}  // namespace caesura
