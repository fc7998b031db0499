// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/precision/cast_propagation.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

// The view is of float32 afterwards. A cast next to its product can become part of it.
TEST(CastPropagation, CastsMoveBeforeViews) {
  const char* body = R"((float16[2, 6] x) => (float[4, 3] y) <int64[2] shape = {4, 3}> {
    v = Reshape (x, shape)
    y = Cast <to = 1> (v)
  })";
  EXPECT_THAT(
      OpsLeft(MakeCastPropagationPass(), body, {Tensor::Zeros(DType::kFloat16, Shape{2, 6})}),
      ElementsAre("Cast", "Reshape"));
}

TEST(CastPropagation, AViewWithAnotherReaderStays) {
  const char* body =
      R"((float16[2, 6] x) => (float[4, 3] y, float16[4, 3] z) <int64[2] shape = {4, 3}> {
    v = Reshape (x, shape)
    y = Cast <to = 1> (v)
    z = Neg (v)
  })";
  EXPECT_THAT(
      OpsLeft(MakeCastPropagationPass(), body, {Tensor::Zeros(DType::kFloat16, Shape{2, 6})}),
      ElementsAre("Reshape", "Cast", "Neg"));
}

// A sum of halves is rounded once more than one that is written in float32.
TEST(CastPropagation, SumsAreWrittenWide) {
  const char* body = R"((float16[8, 3] x) => (float[3] y) <int64[1] shape = {3}> {
    s = ai.caesura.SumTo (x, shape)
    y = Cast <to = 1> (s)
  })";
  EXPECT_THAT(
      OpsLeft(MakeCastPropagationPass(), body, {Tensor::Zeros(DType::kFloat16, Shape{8, 3})}),
      ElementsAre("SumTo"));
}

}  // namespace
}  // namespace caesura::testing
