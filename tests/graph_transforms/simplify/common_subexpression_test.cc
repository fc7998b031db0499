// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/common_subexpression.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

TEST(CommonSubexpression, OfEqualNodesOneIsLeft) {
  const char* body = R"((float[2, 3] x) => (float[2, 3] y) <float one = {1}, float same = {1}> {
    a = Add (x, one)
    b = Add (x, same)
    y = Mul (a, b)
  })";
  EXPECT_THAT(OpsLeft(MakeCommonSubexpressionPass({}), body, {Ramp(Shape{2, 3})}),
              ElementsAre("Add", "Mul"));
}

// Equal values of two parameters differ after the first update.
TEST(CommonSubexpression, ParametersAreNotConstants) {
  const char* body = R"((float[2, 3] x) => (float[2, 3] y) <float one = {1}, float same = {1}> {
    a = Add (x, one)
    b = Add (x, same)
    y = Mul (a, b)
  })";
  EXPECT_THAT(OpsLeft(MakeCommonSubexpressionPass({"one", "same"}), body, {Ramp(Shape{2, 3})}),
              ElementsAre("Add", "Add", "Mul"));
}

// Another attribute, another order of inputs, and a graph output, which keeps its name.
TEST(CommonSubexpression, OthersStay) {
  const char* body = R"((float[2, 3] x) => (float[2, 3] y, float[2, 3] z) <float one = {1}> {
    a = Softmax <axis = 0> (x)
    b = Softmax <axis = 1> (x)
    c = Sub (a, b)
    y = Sub (b, a)
    z = Sub (a, b)
  })";
  EXPECT_THAT(OpsLeft(MakeCommonSubexpressionPass({}), body, {Ramp(Shape{2, 3})}),
              ElementsAre("Softmax", "Softmax", "Sub", "Sub"));
}

TEST(CommonSubexpression, EachRandomNodeDrawsForItself) {
  Model model;
  model.graph = GraphOf(R"((float[64] x) => (float[64] y) {
    a = RandomNormalLike (x)
    b = RandomNormalLike (x)
    y = Sub (a, b)
  })");
  const auto records = RunPasses({MakeCommonSubexpressionPass({})}, model);
  ASSERT_TRUE(records.ok()) << records.status().ToString();
  EXPECT_EQ(model.graph->nodes().size(), 3u);
}

}  // namespace
}  // namespace caesura::testing
