// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/redundant_nodes.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

TEST(RedundantNodes, ConcatOfOnePart) {
  const char* body = R"((float[2, 3] a, float[2, 0] none) => (float[2, 3] y, float[2, 6] z) {
    whole = Concat <axis = 1> (none, a, none)
    y = Neg (whole)
    both = Concat <axis = 1> (a, none, a)
    z = Neg (both)
  })";
  EXPECT_THAT(OpsLeft(MakeRedundantNodesPass(), body,
                      {Ramp(Shape{2, 3}), Tensor::Of<float>(Shape{2, 0}, {})}),
              ElementsAre("Neg", "Concat", "Neg"));
}

}  // namespace
}  // namespace caesura::testing
