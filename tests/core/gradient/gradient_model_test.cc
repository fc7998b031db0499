// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/gradient_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/onnx/model_reader.h"
#include "core/onnx/model_writer.h"
#include "core/session/session.h"

namespace caesura {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// energy = sum of w x^3, and a shape that nothing is differentiated by.
constexpr char kCubes[] =
    R"((double[N] x, int64[N] kinds) => (double energy, double[N] terms, int64[1] size)
       <double[1] w = {2}> {
  square = Mul (x, x) cube = Mul (square, x) terms = Mul (cube, w)
  energy = ReduceSum <keepdims = 0> (terms) size = Shape (kinds) })";

Model Parsed(const std::string& text) {
  return ParseModelText("<ir_version: 10, opset_import: [\"\": 23, \"ai.caesura\": 1]> g " + text)
      .value();
}

std::vector<std::string> NamesOf(const std::vector<Value*>& values) {
  std::vector<std::string> out;
  for (const Value* value : values) out.push_back(value->name());
  return out;
}

Tensor Doubles(const std::vector<double>& values) {
  return Tensor::Of<double>(Shape{static_cast<int64_t>(values.size())}, values);
}

// One output of the model, as it was written and read again.
std::vector<double> OutputOf(const Model& model, const NamedValues& feeds,
                             const std::string& output) {
  Model read = ReadModelBytes(SerializeModel(model).value()).value();
  auto session = Session::Create(std::move(read)).value();
  return session->Run(feeds, {output}).value()[0].tensor().ToVector<double>();
}

std::string Refusal(const std::string& text, const GradientModelOptions& options) {
  const Result<Model> made = GradientModel(Parsed(text), options);
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
  return made.status().message();
}

TEST(GradientModel, AddsTheGradientToWhatTheModelDoes) {
  const Model model = GradientModel(Parsed(kCubes), {.of = {"energy"}, .by = {"x"}}).value();
  EXPECT_THAT(NamesOf(model.graph->inputs()), ElementsAre("x", "kinds"));
  EXPECT_THAT(NamesOf(model.graph->outputs()),
              ElementsAre("energy", "terms", "size", "x_gradient"));
  EXPECT_EQ(model.graph->outputs()[3]->type().ToString(), "float64[N]");
  const Tensor kinds = Tensor::Of<int64_t>(Shape{3}, {0, 0, 0});
  EXPECT_THAT(OutputOf(model, {{"x", Doubles({1, 2, 3})}, {"kinds", kinds}}, "x_gradient"),
              ElementsAre(6, 24, 54));
}

TEST(GradientModel, SeveralElementsAreWeighed) {
  const NamedValues feeds = {{"x", Doubles({1, 2})},
                             {"kinds", Tensor::Of<int64_t>(Shape{2}, {0, 0})},
                             {"terms_gradient", Doubles({10, -1})}};
  const Model model = GradientModel(Parsed(kCubes), {.of = {"terms"}, .by = {"x"}}).value();
  EXPECT_THAT(NamesOf(model.graph->inputs()), ElementsAre("x", "kinds", "terms_gradient"));
  EXPECT_THAT(OutputOf(model, feeds, "x_gradient"), ElementsAre(60, -24));
  // The gradients of several outputs add up.
  const Model both =
      GradientModel(Parsed(kCubes), {.of = {"terms", "energy"}, .by = {"x"}}).value();
  EXPECT_THAT(OutputOf(both, feeds, "x_gradient"), ElementsAre(66, 0));
}

TEST(GradientModel, SumsScalesAndNames) {
  const Model model = GradientModel(Parsed(kCubes), {.of = {"terms"},
                                                     .by = {"w", "x"},
                                                     .sum = true,
                                                     .scale = -1,
                                                     .names = {"slope", "forces"}})
                          .value();
  EXPECT_THAT(NamesOf(model.graph->inputs()), ElementsAre("x", "kinds"));
  const NamedValues feeds = {{"x", Doubles({1, 2})},
                             {"kinds", Tensor::Of<int64_t>(Shape{2}, {0, 0})}};
  EXPECT_THAT(OutputOf(model, feeds, "forces"), ElementsAre(-6, -24));
  EXPECT_THAT(OutputOf(model, feeds, "slope"), ElementsAre(-9));
}

TEST(GradientModel, HessianProducts) {
  const Model model = GradientModel(Parsed("(double[2] x, double[2] a) => (double energy) {"
                                           " y = Mul (x, x) z = Mul (y, a)"
                                           " energy = ReduceSum <keepdims = 0> (z) }"),
                                    {.hessian_product = true})
                          .value();
  EXPECT_THAT(
      NamesOf(model.graph->outputs()),
      ElementsAre("energy", "x_gradient", "a_gradient", "x_hessian_product", "a_hessian_product"));
  const NamedValues feeds = {{"x", Doubles({1, 2})},
                             {"a", Doubles({3, 5})},
                             {"x_direction", Doubles({1, 10})},
                             {"a_direction", Doubles({100, 1000})}};
  // by x: 2 a v + 2 x u, by a: 2 x v
  EXPECT_THAT(OutputOf(model, feeds, "x_hessian_product"), ElementsAre(206, 4100));
  EXPECT_THAT(OutputOf(model, feeds, "a_hessian_product"), ElementsAre(2, 40));
}

TEST(GradientModel, ConstantGradientsHaveAHessianOfZeros) {
  const Model model = GradientModel(Parsed("(double[2] x) => (double y) {"
                                           " y = ReduceSum <keepdims = 0> (x) }"),
                                    {.hessian_product = true})
                          .value();
  const NamedValues feeds = {{"x", Doubles({1, 2})}, {"x_direction", Doubles({1, 1})}};
  EXPECT_THAT(OutputOf(model, feeds, "x_gradient"), ElementsAre(1, 1));
  EXPECT_THAT(OutputOf(model, feeds, "x_hessian_product"), ElementsAre(0, 0));
}

TEST(GradientModel, AGradientHasAGradient) {
  const Model first = GradientModel(Parsed(kCubes), {.of = {"energy"}, .by = {"x"}}).value();
  const Model second =
      GradientModel(first, {.of = {"x_gradient"}, .by = {"x"}, .sum = true, .names = {"curvature"}})
          .value();
  EXPECT_THAT(
      OutputOf(second, {{"x", Doubles({1, 2})}, {"kinds", Tensor::Of<int64_t>(Shape{2}, {0, 0})}},
               "curvature"),
      ElementsAre(12, 24));
}

TEST(GradientModel, ControlFlow) {
  const Model model =
      GradientModel(Parsed("(bool c, double[2] x) => (double y) { z = If (c)"
                           " <then_branch = a () => (double[2] p) { p = Mul (x, x) },"
                           "  else_branch = b () => (double[2] q) { q = Sin (x) }>"
                           " y = ReduceSum <keepdims = 0> (z) }"),
                    {.hessian_product = true})
          .value();
  NamedValues feeds = {
      {"x", Doubles({1, 2})}, {"c", Tensor::Scalar<bool>(true)}, {"x_direction", Doubles({1, 1})}};
  EXPECT_THAT(OutputOf(model, feeds, "x_gradient"), ElementsAre(2, 4));
  EXPECT_THAT(OutputOf(model, feeds, "x_hessian_product"), ElementsAre(2, 2));
  feeds["c"] = Tensor::Scalar<bool>(false);
  EXPECT_THAT(OutputOf(model, feeds, "x_gradient"),
              ElementsAre(DoubleNear(std::cos(1.0), 1e-12), DoubleNear(std::cos(2.0), 1e-12)));
  EXPECT_THAT(OutputOf(model, feeds, "x_hessian_product"),
              ElementsAre(DoubleNear(-std::sin(1.0), 1e-12), DoubleNear(-std::sin(2.0), 1e-12)));
}

TEST(GradientModel, RefusesByName) {
  EXPECT_EQ(Refusal(kCubes, {.by = {"x"}}),
            "gradient: of: the model has several outputs: 'energy', 'terms', 'size'");
  EXPECT_EQ(Refusal(kCubes, {.of = {"force"}}),
            "gradient: of: the model has no output 'force'; it has 'energy', 'terms', 'size'");
  EXPECT_EQ(Refusal(kCubes, {.of = {"size"}}),
            "gradient: of: expected a floating tensor, got 'size' of type int64[1]");
  EXPECT_EQ(
      Refusal(kCubes, {.of = {"energy"}, .by = {"cube"}}),
      "gradient: by: the model has no input or initializer 'cube'; its inputs are 'x', 'kinds'");
  EXPECT_EQ(Refusal(kCubes, {.of = {"energy"}, .by = {"kinds"}}),
            "gradient: by: expected a floating tensor, got 'kinds' of type int64[N]");
  EXPECT_EQ(Refusal(kCubes, {.of = {"energy"}, .by = {"x", "x"}}),
            "gradient: by: 'x' is named twice");
  EXPECT_EQ(Refusal(kCubes, {.of = {"energy"}, .by = {"x"}, .names = {"a", "b"}}),
            "gradient: names: expected 1, one for each of by, got 2");
  EXPECT_EQ(Refusal(kCubes, {.of = {"energy"}, .by = {"x"}, .names = {"terms"}}),
            "gradient: the model has a value 'terms' already, which the gradient needs");
  EXPECT_EQ(Refusal("(double[2] x, double[2] z) => (double[2] y) { y = Sin (x) }", {}),
            "gradient: no output depends on 'z'");
  EXPECT_EQ(Refusal("(int64[2] i) => (double[2] y) { y = Cast <to = 11> (i) }", {}),
            "gradient: by: the model has no floating input; it has 'i'");
}

TEST(GradientModel, ListsNodesWithoutAGradient) {
  const Result<Model> made = GradientModel(
      Parsed("(float[4] x) => (float[N] y) { y, i, j, k = Unique (x) }"), {.sum = true});
  EXPECT_EQ(made.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(made.status().message(), HasSubstr("gradient: 1 node has no gradient:\n  [Unique '"));
}

}  // namespace
}  // namespace caesura
