// SPDX-License-Identifier: Apache-2.0
// Each loss against its formula in double, the elements that it counts, and what is refused.
#include "training/step/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/onnx/model_reader.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

Model LossModel(const std::string& signature, const std::string& nodes) {
  Model model = ParseModelText("<ir_version: 10, opset_import: [\"\": 20]> g " + signature + " {" +
                               nodes + "}")
                    .value();
  EXPECT_TRUE(InferShapes(model).ok());
  return model;
}

// The scores x + 0 of a model without a loss.
Model Scores(const std::string& dims = "float[2, 3]") {
  return LossModel("(" + dims + " x) => (" + dims + " y)", "y = Identity (x)");
}

// The loss of the scores, and the number of elements that it is the mean of.
std::vector<float> LossAndCount(Model model, const Loss& loss, NamedValues feeds) {
  Graph& graph = *model.graph;
  Value* value = AddLoss(graph, loss).value();
  EXPECT_EQ(value->type().ToString(), "float32[]");
  Value* count = AddLossCount(graph, loss, *value).value();
  graph.ClearOutputs();
  for (Value* output : {value, count}) graph.AddOutput(output);
  SessionOptions options;
  options.providers = {MakeCpuProvider()};
  auto session = Session::Create(std::move(model), std::move(options)).value();
  const auto out = session->Run(feeds).value();
  return {out[0].tensor().ToVector<float>()[0], out[1].tensor().ToVector<float>()[0]};
}

const std::vector<float> kScores = {0.5f, -1, 2, 3, 0, -0.25f};
const Tensor kX = Tensor::Of<float>({2, 3}, kScores);

// -log softmax(scores)[label]
double LogLoss(const std::vector<double>& scores, int label) {
  double sum = 0;
  for (double score : scores) sum += std::exp(score);
  return std::log(sum) - scores[label];
}

TEST(Losses, CrossEntropyOfClasses) {
  const double first = LogLoss({0.5, -1, 2}, 1), second = LogLoss({3, 0, -0.25}, 0);
  const auto all =
      LossAndCount(Scores(), Loss::CrossEntropy(), {{"x", kX}, {"target", IntVector({1, 0})}});
  EXPECT_FLOAT_EQ(all[0], static_cast<float>((first + second) / 2));
  EXPECT_EQ(all[1], 2);
  // Targets of the ignored class do not count.
  Loss loss = Loss::CrossEntropy("labels");
  loss.ignore_index = 7;
  const auto one = LossAndCount(Scores(), loss, {{"x", kX}, {"labels", IntVector({7, 0})}});
  EXPECT_NEAR(one[0], second, 1e-6);  // a difference of two numbers near 3, in float32
  EXPECT_EQ(one[1], 1);
}

// Scores [batch, position, class] as language models make them.
TEST(Losses, CrossEntropyOfTheLastAxis) {
  Loss loss;
  loss.class_axis = -1;
  const NamedValues feeds = {{"x", Tensor::Of<float>({1, 2, 3}, kScores)},
                             {"target", Tensor::Of<int64_t>({1, 2}, {1, 0})}};
  const float expected =
      static_cast<float>((LogLoss({0.5, -1, 2}, 1) + LogLoss({3, 0, -0.25}, 0)) / 2);
  EXPECT_FLOAT_EQ(LossAndCount(Scores("float[1, 2, 3]"), loss, feeds)[0], expected);
  EXPECT_FLOAT_EQ(LossAndCount(Scores("float[n, m, c]"), loss, feeds)[0], expected);
}

// The same scores with the classes on each axis in turn.
TEST(Losses, CrossEntropyOfAnyAxis) {
  const std::vector<float> scores = {0.5f, -1, 2, 3, 0, -0.25f, 1, 4};  // [2, 2, 2]
  const Tensor x = Tensor::Of<float>({2, 2, 2}, scores);
  const std::vector<int64_t> labels = {1, 0, 0, 1};
  for (int axis = 0; axis < 3; ++axis) {
    const int stride = 4 >> axis;
    double expected = 0;
    for (int t = 0; t < 4; ++t) {
      // The target's place among the two other axes, and its scores.
      const int first = axis == 0 ? t : axis == 1 ? t / 2 * 4 + t % 2 : t * 2;
      expected += LogLoss({scores[first], scores[first + stride]}, static_cast<int>(labels[t])) / 4;
    }
    for (const int given : {axis, axis - 3}) {
      Loss loss;
      loss.class_axis = given;
      const auto got = LossAndCount(Scores("float[2, 2, 2]"), loss,
                                    {{"x", x}, {"target", Tensor::Of<int64_t>({2, 2}, labels)}});
      EXPECT_FLOAT_EQ(got[0], static_cast<float>(expected)) << given;
      EXPECT_EQ(got[1], 4);
    }
  }
}

TEST(Losses, MeansOverAllElements) {
  const std::vector<float> targets = {1, 0, 1, 0, 0.5f, 1};
  double squares = 0, distances = 0, logits = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const double x = kScores[i], t = targets[i], p = 1 / (1 + std::exp(-x));
    squares += (x - t) * (x - t) / 6;
    distances += std::abs(x - t) / 6;
    logits -= (t * std::log(p) + (1 - t) * std::log(1 - p)) / 6;
  }
  const NamedValues feeds = {{"x", kX}, {"target", Tensor::Of<float>({2, 3}, targets)}};
  const std::pair<Loss::Kind, double> kinds[] = {{Loss::Kind::kMeanSquaredError, squares},
                                                 {Loss::Kind::kMeanAbsoluteError, distances},
                                                 {Loss::Kind::kBinaryCrossEntropyLogits, logits}};
  for (const auto& [kind, expected] : kinds) {
    Loss loss;
    loss.kind = kind;
    const auto got = LossAndCount(Scores(), loss, feeds);
    EXPECT_FLOAT_EQ(got[0], static_cast<float>(expected));
    EXPECT_EQ(got[1], 6);
  }
}

// Scores so large that exp overflows have a finite loss.
TEST(Losses, LargeLogitsStayFinite) {
  Loss loss;
  loss.kind = Loss::Kind::kBinaryCrossEntropyLogits;
  const auto got =
      LossAndCount(Scores("float[2]"), loss,
                   {{"x", FloatVector({1000, -1000})}, {"target", FloatVector({0, 0})}});
  EXPECT_FLOAT_EQ(got[0], 500);
}

TEST(Losses, AModelsOwn) {
  const std::string cross = "l = SoftmaxCrossEntropyLoss <ignore_index = 2> (x, t)";
  Model model = LossModel("(float[2, 3] x, int64[2] t) => (float[2, 3] x, float[] l)", cross);
  Value* loss = AddLoss(*model.graph, Loss::Output("l")).value();
  EXPECT_EQ(loss->name(), "l");
  EXPECT_EQ(model.graph->inputs().size(), 2u);  // no target is added
  EXPECT_EQ(
      LossAndCount(std::move(model), Loss::Output("l"), {{"x", kX}, {"t", IntVector({2, 0})}})[1],
      1);
  Model other = LossModel("(float[2] x) => (float[] l)", "l = ReduceMax <keepdims = 0> (x)");
  Value* most = AddLoss(*other.graph, Loss::Output("l")).value();
  EXPECT_THAT(AddLossCount(*other.graph, Loss::Output("l"), *most).status().message(),
              HasSubstr("the model's own loss 'l' is no mean cross entropy"));
}

TEST(Losses, RefusesWhatDoesNotFit) {
  const auto refusal = [](Model model, const Loss& loss) {
    const auto added = AddLoss(*model.graph, loss);
    EXPECT_FALSE(added.ok());
    return added.status().message();
  };
  EXPECT_THAT(refusal(Scores(), Loss::Output("z")),
              HasSubstr("the model has no output 'z' for the loss; it has 'y'"));
  EXPECT_THAT(refusal(Scores(), Loss::CrossEntropy("x")),
              HasSubstr("the loss's target 'x' is the name of a value of the model already"));
  Loss other_axis;
  for (const int axis : {-3, 2}) {
    other_axis.class_axis = axis;
    EXPECT_THAT(refusal(Scores(), other_axis),
                HasSubstr("class_axis " + std::to_string(axis) +
                          ": expected an axis of the scores; the scores 'y' are float32[2, 3]"));
  }
  other_axis.class_axis = -1;
  EXPECT_THAT(refusal(Scores("float"), other_axis), HasSubstr("the scores 'y' are float32[]"));
  Model halves = Scores("float16[2, 3]");
  const Loss squares = Loss::MeanSquaredError();
  Value* value = AddLoss(*halves.graph, squares).value();
  EXPECT_THAT(AddLossCount(*halves.graph, squares, *value).status().message(),
              HasSubstr("expected a loss of float32 or float64, got float16"));
}

TEST(Losses, SeveralTermsAreWeighed) {
  Model model = LossModel("(float[2, 3] x) => (float[2, 3] y, float[2, 3] z)",
                          "y = Identity (x) z = Neg (x)");
  Loss loss = Loss::MeanSquaredError("t");
  loss.also = {"z=u*0.5", "z=v"};
  Value* value = AddLoss(*model.graph, loss).value();
  model.graph->ClearOutputs();
  model.graph->AddOutput(value);
  auto session = Session::Create(std::move(model)).value();
  const auto filled = [](float x) { return Tensor::Of<float>({2, 3}, std::vector<float>(6, x)); };
  const NamedValues feeds = {
      {"x", filled(1)}, {"t", filled(3)}, {"u", filled(3)}, {"v", filled(0)}};
  EXPECT_EQ(session->Run(feeds).value()[0].tensor().ToVector<float>()[0], 4 + 0.5f * 16 + 1);
}

TEST(Losses, TermsOfAnotherFormAreRefused) {
  Loss loss = Loss::MeanSquaredError("t");
  for (const char* text : {"y", "=t", "y=", "y=*2", "y=t*", "y=t*two", "y=t*nan"}) {
    loss.also = {text};
    EXPECT_EQ(LossTerms(loss).status().message(),
              "also: expected PREDICTION=TARGET or PREDICTION=TARGET*WEIGHT, got '" +
                  std::string(text) + "'");
  }
  Loss own = Loss::Output("y");
  own.also = {"z=t"};
  EXPECT_EQ(LossTerms(own).status().message(),
            "also: a loss of the model's own has no further terms");
}

}  // namespace
}  // namespace caesura
