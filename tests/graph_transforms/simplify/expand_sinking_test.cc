// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/expand_sinking.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

// The gradient of a mean: divided before it is spread, and spread by what it is multiplied with.
TEST(ExpandSinking, ArithmeticBroadcasts) {
  const char* body =
      R"((float[2, 3, 1] dy, float[2, 3, 4] x) => (float[2, 3, 4] y, float[2, 3, 4] z)
      <int64[3] shape = {2, 3, 4}, float count = {4}> {
    e = Expand (dy, shape)
    d = Div (e, count)
    y = Mul (x, d)
    z = Sub (count, e)
  })";
  EXPECT_THAT(OpsLeft(MakeExpandSinkingPass(), body, {Ramp(Shape{2, 3, 1}), Ramp(Shape{2, 3, 4})}),
              ElementsAre("Div", "Mul", "Sub", "Expand"));
}

// Three reasons: the other side needs the spread tensor, it is spread itself, or no shape is known.
TEST(ExpandSinking, OthersStay) {
  const Values feeds = {Ramp(Shape{1, 4}), Ramp(Shape{3, 1})};
  const std::string head =
      "<int64[2] shape = {3, 4}, int64[2] square = {2, 2}> { e = Expand (x, shape) ";
  EXPECT_THAT(
      OpsLeft(MakeExpandSinkingPass(),
              "(float[1, 4] x, float[3, 1] b) => (float[3, 4] y) " + head + "y = Exp (e) }", feeds),
      ElementsAre("Expand", "Exp"));
  EXPECT_THAT(
      OpsLeft(MakeExpandSinkingPass(),
              "(float[N, 4] x, float[3, 1] b) => (float[3, 4] y) " + head + "y = Add (e, b) }",
              feeds),
      ElementsAre("Expand", "Add"));
  EXPECT_THAT(
      OpsLeft(MakeExpandSinkingPass(),
              "(float[1, 4] x, float[3, 1] b) => (float[3, 4] y) " + head + "y = Add (e, e) }",
              feeds),
      ElementsAre("Expand", "Add"));
}

}  // namespace
}  // namespace caesura::testing
