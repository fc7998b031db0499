// SPDX-License-Identifier: Apache-2.0
// Which values of a model are trained, and how a selection that cannot be is refused.
#include "training/step/trainable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/onnx/model_reader.h"
#include "core/onnx/inference/shape_inference.h"

namespace caesura {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The initializers of kTrainableNet are `w` and `b` that the loss reads, `scalar`, `ids`, `mask`
// that nothing differentiable reads, and `other`, which an output reads that is no loss.
constexpr char kTrainableNet[] = R"((float[2, 3] x) => (float[2, 4] y, float[5] z)
    <float[3, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[4] b = {1, 2, 3, 4},
     float scalar = {2}, int64[1] ids = {0}, float[5] other = {1, 2, 3, 4, 5}> {
      h = MatMul (x, w) a = Add (h, b) s = Mul (a, scalar) k = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> ()
      y = Add (s, k) i = Cast <to = 1> (ids) z = Mul (other, i) })";

Model TrainableModel(const std::string& text) {
  Model model = ParseModelText("<ir_version: 10, opset_import: [\"\": 20]> g " + text).value();
  EXPECT_TRUE(InferShapes(model).ok());
  return model;
}

using Names = std::vector<std::string>;
const Loss kSquares = Loss::MeanSquaredError();

Result<Names> Selected(const std::string& text, const TrainableOptions& options,
                       const Loss* loss = &kSquares) {
  Model model = TrainableModel(text);
  return TrainableNames(model, options, loss);
}

TEST(Trainable, ByDefaultTheWeightsThatGradientsReach) {
  EXPECT_THAT(Selected(kTrainableNet, {}).value(), ElementsAre("w", "b"));
}

TEST(Trainable, ByNameInTheModelsOrder) {
  EXPECT_THAT(Selected(kTrainableNet, {.trainable = {"b", "w"}}).value(), ElementsAre("w", "b"));
  EXPECT_THAT(Selected(kTrainableNet, {.trainable = {"*"}, .frozen = {"b", "other"}}).value(),
              ElementsAre("w", "scalar"));
  EXPECT_THAT(Selected(kTrainableNet, {.frozen = {"w"}}).value(), ElementsAre("b"));
  // Named ones are trained with zeros although the loss does not read them.
  EXPECT_THAT(Selected(kTrainableNet, {.trainable = {"b", "other"}}).value(),
              ElementsAre("b", "other"));
}

TEST(Trainable, NamesThatAreNoneAreListedWithTheNearest) {
  const Status wrong = Selected(kTrainableNet, {.trainable = {"othr", "w", "ids"}}).status();
  EXPECT_EQ(wrong.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(wrong.message(),
              AllOf(HasSubstr("trainable: "), HasSubstr("'othr' (nearest: 'other'"),
                    HasSubstr("'ids'"), Not(HasSubstr("'w'"))));
  EXPECT_THAT(Selected(kTrainableNet, {.frozen = {"bias"}}).status().message(),
              HasSubstr("frozen: the model has no floating initializer 'bias'"));
}

TEST(Trainable, ConstantNodesWhereTheyAreAskedFor) {
  Model model = TrainableModel(kTrainableNet);
  const TrainableOptions options = {.train_constants = true};
  EXPECT_THAT(TrainableNames(model, options, &kSquares).value(), ElementsAre("w", "b", "k"));
  const Tensor* now = model.graph->Initializer(model.graph->FindValue("k"));
  ASSERT_NE(now, nullptr);
  EXPECT_THAT(now->ToVector<float>(), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(model.graph->FindValue("k")->producer(), nullptr);
  EXPECT_THAT(Selected(kTrainableNet, {.frozen = {"k"}, .train_constants = true}).value(),
              ElementsAre("w", "b"));
  EXPECT_THAT(Selected(kTrainableNet, {.trainable = {"k"}}).status().message(),
              HasSubstr("train_constants (--train-constants) makes these trainable"));
}

// A module may have nothing to train, and keeps what its outputs do not depend on.
TEST(Trainable, WithoutALossGradientsBeginAtTheOutputs) {
  EXPECT_THAT(Selected(kTrainableNet, {}, nullptr).value(), ElementsAre("w", "b", "other"));
  EXPECT_THAT(Selected("(float[2] x) => (float[2] y) { y = Neg (x) }", {}, nullptr).value(),
              IsEmpty());
  EXPECT_FALSE(Selected("(float[2] x) => (float[2] y) { y = Neg (x) }", {}).ok());
}

TEST(Trainable, WhereNoGradientArrivesTheNodeIsNamed) {
  const std::string rounded = R"((float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
      a = Mul (x, w) r = Floor (a) y = Neg (r) })";
  const Status stops = Selected(rounded, {}).status();
  EXPECT_EQ(stops.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(stops.message(),
              AllOf(HasSubstr("no gradient of the loss reaches any parameter"),
                    HasSubstr("it stops at"), HasSubstr("Floor"), Not(HasSubstr("Neg"))));
}

TEST(Trainable, StatisticsAndScalesAreNone) {
  EXPECT_THAT(Selected(R"((float[2, 3] x) => (float[2, 3] y)
      <float[3] s = {1, 1, 1}, float[3] b = {0, 0, 0}, float[3] m = {0, 0, 0}, float[3] v = {1, 1, 1}> {
      y = BatchNormalization (x, s, b, m, v) })",
                       {})
                  .value(),
              ElementsAre("s", "b"));
  EXPECT_THAT(Selected(R"((float[2, 3] x) => (float[2, 3] y)
      <float[3] w = {1, 2, 3}, float[3] scale = {1, 1, 1}, int8[3] zero = {0, 0, 0}> {
      a = Mul (x, w) q = QuantizeLinear <axis = 1> (a, scale, zero)
      y = DequantizeLinear <axis = 1> (q, scale, zero) })",
                       {})
                  .value(),
              ElementsAre("w"));
}

TEST(Trainable, TheModelIsLeftAsItWas) {
  Model model = TrainableModel(kTrainableNet);
  const std::string before = ModelText(model);
  ASSERT_TRUE(TrainableNames(model, {}, &kSquares).ok());
  EXPECT_EQ(ModelText(model), before);
  EXPECT_THAT(InitializerNames(*model.graph), ElementsAre("w", "b", "scalar", "ids", "other"));
}

}  // namespace
}  // namespace caesura
