// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/shapes/shape_simplification.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Shaped(const std::string& body, const Values& feeds) {
  return OpsLeft(MakeShapeSimplificationPass(), body, feeds);
}

// Dims 1 and 2 of [N, 3, 8] are 3 and 8 whatever N is; -1 counts from the end.
TEST(ShapeSimplification, MakesKnownDimsConstants) {
  EXPECT_THAT(
      Shaped(
          R"((float[N, 3, 8] x) => (int64[2] y, int64 z) <int64[2] at = {1, -1}, int64 two = {2}, int64[2] none = {0, 0}> {
    s = Shape (x)
    d = Gather (s, at)
    y = Add (d, none)
    e = Gather (s, two)
    z = Neg (e)
  })",
          {Ramp(Shape{5, 3, 8})}),
      ElementsAre("Add", "Neg"));
}

// [N, 3, 8] and [N, 8, 3] of another node: one Gather for both.
TEST(ShapeSimplification, ComputesASymbolOnce) {
  EXPECT_THAT(
      Shaped(R"((float[N, 3, 8] x) => (float[A, B] y, float[C, D] z)
      <int64[1] first = {0}, int64[1] rest = {-1}> {
    t = Transpose <perm = [0, 2, 1]> (x)
    s = Shape (x)
    n = Gather (s, first)
    to = Concat <axis = 0> (n, rest)
    y = Reshape (x, to)
    s2 = Shape (t)
    n2 = Gather (s2, first)
    to2 = Concat <axis = 0> (n2, rest)
    z = Reshape (t, to2)
  })",
             {Ramp(Shape{5, 3, 8})}),
      ElementsAre("Transpose", "Shape", "Gather", "Concat", "Reshape", "Concat", "Reshape"));
}

// Two inputs say N, and nothing makes the caller keep to that.
TEST(ShapeSimplification, DoesNotTrustSymbolsOfSeveralInputs) {
  EXPECT_THAT(Shaped(R"((float[N] x, float[N] z) => (int64[1] y) <int64[1] first = {0}> {
    s = Shape (x)
    n = Gather (s, first)
    s2 = Shape (z)
    n2 = Gather (s2, first)
    y = Sub (n, n2)
  })",
                     {Ramp(Shape{5}), Ramp(Shape{2})}),
              ElementsAre("Shape", "Gather", "Shape", "Gather", "Sub"));
}

// Shape [1:3] is [3, 8]; its slice [1:] is 8; joined with 3 * 8 = 24, the size of [3, 8], it is [8,
// 24].
TEST(ShapeSimplification, FollowsSlicesJoinsAndSizes) {
  EXPECT_THAT(Shaped(R"((float[3, 8] x) => (int64[2] y)
      <int64[1] one = {1}, int64[1] end = {9}, int64[1] zero = {0}, int64[2] none = {0, 0}> {
    s = Shape <start = 0, end = 2> (x)
    d = Slice (s, one, end)
    n = Size (x)
    u = Unsqueeze (n, zero)
    j = Concat <axis = 0> (d, u)
    y = Add (j, none)
  })",
                     {Ramp(Shape{3, 8})}),
              ElementsAre("Add"));
}

}  // namespace
}  // namespace caesura::testing
