// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/precision/cast_grouping.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

constexpr char kWeights[] =
    " <float[2, 2] w = {1.5, -2, 70000, 0.1}, float[2] b = {3, 4}, float[2] fixed = {5, 6}> ";

std::vector<std::string> LeftByCastGrouping(const std::string& nodes, const std::string& outputs) {
  return OpsLeft(MakeCastGroupingPass({"w", "b"}),
                 "(float[2, 2] x) => (" + outputs + ")" + kWeights + nodes,
                 {Tensor::Of<float>(Shape{2, 2}, {1, 2, 3, 4})});
}

// The node stands before the first reader of any of them.
TEST(CastGrouping, CastsOfParametersAreOneNode) {
  EXPECT_THAT(LeftByCastGrouping(R"({
    half = Cast <to = 10> (x)
    wide = Cast <to = 10> (w)
    p = MatMul (half, wide)
    c = Cast <to = 10> (b)
    y = Add (p, c)
  })",
                                 "float16[2, 2] y"),
              ElementsAre("Cast", "CastAll", "MatMul", "Add"));
}

TEST(CastGrouping, EachTypeHasItsOwn) {
  EXPECT_THAT(LeftByCastGrouping(R"({
    y = Cast <to = 10> (w)
    z = Cast <to = 16> (b)
    u = Cast <to = 10> (b)
    v = Cast <to = 16> (w)
  })",
                                 "float16[2, 2] y, bfloat16[2] z, float16[2] u, bfloat16[2, 2] v"),
              ElementsAre("CastAll", "CastAll"));
}

// Planning folds casts of what does not change; integers have rules of their own.
TEST(CastGrouping, OtherCastsStay) {
  EXPECT_THAT(LeftByCastGrouping(R"({
    y = Cast <to = 10> (w)
    z = Cast <to = 10> (fixed)
    u = Cast <to = 6> (b)
    v = Cast <to = 16> (b)
  })",
                                 "float16[2, 2] y, float16[2] z, int32[2] u, bfloat16[2] v"),
              ElementsAre("Cast", "Cast", "Cast", "Cast"));
}

}  // namespace
}  // namespace caesura::testing
