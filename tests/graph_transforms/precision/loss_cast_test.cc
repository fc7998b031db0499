// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/precision/loss_cast.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> LeftByLossCast(const std::string& nodes, const std::string& outputs) {
  return OpsLeft(
      MakeLossCastPass(),
      "(float d, float[3, 4] scores, int64[3] labels, float[3] lse) => (" + outputs +
          ") <int64[3] shape = {1, 3, 4}> " + nodes,
      {Tensor::Of<float>(Shape{}, {2}),
       Tensor::Of<float>(Shape{3, 4}, {-1, -2, -3, -0.5, -1, -2, -3, -0.5, -0.1, -4, -5, -6}),
       Tensor::Of<int64_t>(Shape{3}, {0, 3, 1}), Tensor::Of<float>(Shape{3}, {0, 0.5, 1})});
}

TEST(LossCast, TheGradientIsOfHalves) {
  EXPECT_THAT(LeftByLossCast(R"({
    g = ai.caesura.SoftmaxCrossEntropyLossGrad (d, scores, labels, , lse)
    y = Cast <to = 16> (g)
  })",
                             "bfloat16[3, 4] y"),
              ElementsAre("SoftmaxCrossEntropyLossGrad"));
}

TEST(LossCast, ReshapesStay) {
  EXPECT_THAT(LeftByLossCast(R"({
    g = ai.caesura.SoftmaxCrossEntropyLossGrad (d, scores, labels, , lse)
    r = Reshape (g, shape)
    y = Cast <to = 10> (r)
  })",
                             "float16[1, 3, 4] y"),
              ElementsAre("SoftmaxCrossEntropyLossGrad", "Reshape"));
}

TEST(LossCast, AGradientThatIsReadInFloat32Stays) {
  EXPECT_THAT(LeftByLossCast(R"({
    g = ai.caesura.SoftmaxCrossEntropyLossGrad (d, scores, labels, , lse)
    y = Cast <to = 16> (g)
    z = Neg (g)
  })",
                             "bfloat16[3, 4] y, float[3, 4] z"),
              ElementsAre("SoftmaxCrossEntropyLossGrad", "Cast", "Neg"));
}

}  // namespace
}  // namespace caesura::testing
