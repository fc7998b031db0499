// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/aten_op.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>
#include <torch/library.h>

#include "core/onnx/model_reader.h"
#include "core/plan/execution_plan.h"
#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "torch_bridge/kernel_library.h"
#include "torch_bridge/torch_tensor.h"
#include "training/session/split_module.h"

// Operators of a user's own.
TORCH_LIBRARY(caesura_test, library) {
  library.def(
      "describe(Tensor x, ScalarType dtype, str text, float[] factors, bool flag, Device? "
      "device=None) -> Tensor",
      [](const at::Tensor& x, at::ScalarType dtype, std::string text, std::vector<double> factors,
         bool flag, std::optional<at::Device> device) {
        const double sum =
            factors[0] + factors[1] + static_cast<double>(text.size()) + (flag ? 100 : 0);
        return (x + sum + (device ? 1000 : 0)).to(dtype);
      });
  library.def("fail(Tensor x) -> Tensor", [](const at::Tensor&) -> at::Tensor {
    throw std::runtime_error("the user's own words");
  });
}

namespace caesura::torch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Values = std::vector<RuntimeValue>;

ProviderList Providers() {
  return {MakeCpuProvider([](KernelRegistry& registry) { RegisterAtenKernels(registry); })};
}

Model Parse(const std::string& graph) {
  return ParseModelText("<ir_version: 10, opset_import: [\"\": 21, \"org.pytorch.aten\": 1]>\n" +
                        graph)
      .value();
}

Result<Values> TryRun(const std::string& graph, const std::vector<at::Tensor>& feeds) {
  SessionOptions options;
  options.providers = Providers();
  auto session = Session::Create(Parse(graph), std::move(options));
  if (!session.ok()) return session.status();
  NamedValues named;
  for (size_t i = 0; i < feeds.size(); ++i)
    named[(*session)->inputs()[i]->name()] = FromTorch(feeds[i]).value();
  return (*session)->Run(named);
}

std::vector<at::Tensor> RunGraph(const std::string& graph, const std::vector<at::Tensor>& feeds) {
  std::vector<at::Tensor> out;
  const Values values = TryRun(graph, feeds).value();
  for (const RuntimeValue& value : values) out.push_back(ToTorch(value.tensor()).value());
  return out;
}

std::string ErrorOf(const std::string& attributes, const std::string& inputs = "x") {
  const auto result = TryRun("g (float[3] x) => (float[N] y) { y = org.pytorch.aten.ATen <" +
                                 attributes + "> (" + inputs + ") }",
                             {at::ones({3})});
  return result.ok() ? "" : result.status().ToString();
}

const at::Tensor kX = at::linspace(-2, 3, 12).reshape({3, 4});

TEST(AtenOpTest, OneTensorInOneOut) {
  const auto y = RunGraph(
      "g (float[N, 4] x) => (float[N, 4] y) { y = org.pytorch.aten.ATen <operator = "
      "\"aten::gelu\"> (x) }",
      {kX});
  EXPECT_TRUE(at::equal(y[0], at::gelu(kX)));
}

TEST(AtenOpTest, AttributesOfEveryKind) {
  // 0.5 and 0.25 as floats, 7 letters, a flag: x + 107.75, and 1000 for the device
  const auto y = RunGraph(
      "g (float[3, 4] x) => (double[3, 4] y, double[3, 4] z) {\n"
      "y = org.pytorch.aten.ATen <operator = \"caesura_test::describe\", dtype = \"float64\",\n"
      "  text = \"letters\", factors = [0.5, 0.25], flag = 1> (x)\n"
      "z = org.pytorch.aten.ATen <operator = \"caesura_test::describe\", dtype = \"float64\", "
      "device = \"cpu\",\n"
      "  text = \"letters\", factors = double[2] {0.5, 0.25}, flag = 0> (x) }",
      {kX});
  EXPECT_EQ(y[0].scalar_type(), at::kDouble);
  EXPECT_TRUE(at::equal(y[0], (kX + 107.75).to(at::kDouble)));
  EXPECT_TRUE(at::equal(y[1], (kX + 1007.75).to(at::kDouble)));
}

TEST(AtenOpTest, NumbersAreExactInTensorAttributes) {
  const auto y = RunGraph(
      "g (double[1] x) => (double[1] y, double[1] z) {\n"
      "y = org.pytorch.aten.ATen <operator = \"aten::add\", overload_name = \"Scalar\", other = "
      "double[1] {0.1}> (x)\n"
      "z = org.pytorch.aten.ATen <operator = \"aten::add\", overload_name = \"Scalar\", other = "
      "0.1> (x) }",
      {at::zeros({1}, at::kDouble)});
  EXPECT_EQ(y[0].item<double>(), 0.1);
  EXPECT_EQ(y[1].item<double>(), double{0.1f});
}

TEST(AtenOpTest, SeveralResults) {
  const auto y = RunGraph(
      "g (float[3, 4] x, float[4] w) => (float[3, 4] y, float[3, 1] mean, float[3] m, int64[3] i) "
      "{\n"
      "y, mean = org.pytorch.aten.ATen <operator = \"aten::native_layer_norm\", normalized_shape = "
      "[4],\n"
      "  arguments = [\"input\", \"weight\"], eps = double[1] {1e-5}> (x, w)\n"
      "m, i = org.pytorch.aten.ATen <operator = \"aten::max\", overload_name = \"dim\", dim = 1> "
      "(x) }",
      {kX, at::ones({4})});
  const auto [norm, mean, rstd] =
      at::native_layer_norm(kX, at::IntArrayRef{4}, at::ones({4}), {}, 1e-5);
  EXPECT_TRUE(at::equal(y[0], norm));
  EXPECT_TRUE(at::equal(y[1], mean));
  EXPECT_TRUE(at::equal(y[2], std::get<0>(at::max(kX, 1))));
  EXPECT_TRUE(at::equal(y[3], std::get<1>(at::max(kX, 1))));
}

TEST(AtenOpTest, ListsOfTensorsInAndOut) {
  const auto y = RunGraph(
      "g (float[3, 4] x, float[2, 4] w) => (float[A, 4] y, float[3, 1] first, float[3, 3] second) "
      "{\n"
      "y = org.pytorch.aten.ATen <operator = \"aten::cat\", arguments = [\"tensors\", "
      "\"tensors\"], dim = 0> (x, w)\n"
      "first, second = org.pytorch.aten.ATen <operator = \"aten::split_with_sizes\", split_sizes = "
      "[1, 3],\n"
      "  dim = 1> (x) }",
      {kX, at::ones({2, 4})});
  EXPECT_TRUE(at::equal(y[0], at::cat({kX, at::ones({2, 4})})));
  EXPECT_TRUE(at::equal(y[2], kX.slice(1, 1, 4)));
}

TEST(AtenOpTest, AbsentElementsOfAList) {
  const at::Tensor i = at::tensor({3, 1}, at::kLong);
  const auto y = RunGraph(
      "g (float[3, 4] x, int64[2] i) => (float[3, 2] y) {\n"
      "y = org.pytorch.aten.ATen <operator = \"aten::index\", overload_name = \"Tensor\",\n"
      "  arguments = [\"self\", \"indices\", \"indices\"]> (x, , i) }",
      {kX, i});
  EXPECT_TRUE(at::equal(y[0], kX.index_select(1, i)));
}

TEST(AtenOpTest, IntegersAsInputs) {
  const char graph[] =
      "g (float[3, 4] x, int64[2] shape) => (float[A, B] y) {\n"
      "y = org.pytorch.aten.ATen <operator = \"aten::view\"> (x, shape) }";
  const auto y = RunGraph(graph, {kX, at::tensor({2, 6}, at::kLong)});
  EXPECT_TRUE(at::equal(y[0], kX.view({2, 6})));
}

TEST(AtenOpTest, KnownIntegersArePlanned) {
  const Model model = Parse(
      "g (float[3, 4] x) => (float[A, B] y) <int64[2] shape = {6, 2}> {\n"
      "y = org.pytorch.aten.ATen <operator = \"aten::view\"> (x, shape) }");
  SessionOptions options;
  options.providers = Providers();
  auto session = Session::Create(model.Clone(), std::move(options)).value();
  const std::string plan = session->Plan({{"x", FromTorch(kX).value()}}).value()->ToString();
  EXPECT_THAT(plan, HasSubstr("[6, 2]"));
}

TEST(AtenOpTest, SizesThatShowInTheRun) {
  const auto y = RunGraph(
      "g (float[3, 4] x) => (int64[A, 2] y, float[B] z) {\n"
      "p = org.pytorch.aten.ATen <operator = \"aten::relu\"> (x)\n"
      "y = org.pytorch.aten.ATen <operator = \"aten::nonzero\"> (p)\n"
      "q = org.pytorch.aten.ATen <operator = \"aten::gt\", overload_name = \"Scalar\", other = 1> "
      "(x)\n"
      "z = org.pytorch.aten.ATen <operator = \"aten::masked_select\"> (x, q) }",
      {kX});
  EXPECT_TRUE(at::equal(y[0], at::nonzero(at::relu(kX))));
  EXPECT_TRUE(at::equal(y[1], at::masked_select(kX, kX > 1)));
}

TEST(AtenOpTest, NoInputAtAllAndOptionalsThatAreNone) {
  const auto y = RunGraph(
      "g (float[3, 4] x) => (int64[5] y, float[3, 4] z) {\n"
      "y = org.pytorch.aten.ATen <operator = \"aten::arange\", end = 5> ()\n"
      "z = org.pytorch.aten.ATen <operator = \"aten::clamp\", min = 0.0, none = [\"max\"]> (x) }",
      {kX});
  EXPECT_TRUE(at::equal(y[0], at::arange(5)));
  EXPECT_TRUE(at::equal(y[1], at::relu(kX)));
}

TEST(AtenOpTest, TheSurroundingModesDoNotReachTheKernels) {
  const char graph[] =
      "g (float[3, 4] x) => (float[3, 4] y) { s = org.pytorch.aten.ATen <operator = \"aten::eye\", "
      "n = 4> () "
      "y = org.pytorch.aten.ATen <operator = \"aten::matmul\"> (x, s) }";
  const c10::InferenceMode inference;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  c10::impl::IncludeDispatchKeyGuard autocast(c10::DispatchKey::AutocastCPU);
  const auto y = RunGraph(graph, {kX});
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(y[0].scalar_type(), at::kFloat);  // autocast would have made it bfloat16
}

TEST(AtenOpTest, RandomNumbersFollowTheRunsKey) {
  const char graph[] =
      "g (float[1000] x) => (float[1000] y) { y = org.pytorch.aten.ATen <operator = "
      "\"aten::bernoulli\"> (x) }";
  const at::Tensor half = at::full({1000}, 0.5);
  const auto first = RunGraph(graph, {half}),
             second = RunGraph(graph, {half});  // the first runs of two sessions of one seed
  EXPECT_TRUE(at::equal(first[0], second[0]));
  EXPECT_NEAR(first[0].sum().item<double>(), 500, 100);
}

TEST(AtenOpTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(ErrorOf("operator = \"aten::nonsense\""), HasSubstr("no operator 'aten::nonsense'"));
  EXPECT_THAT(ErrorOf("operator = \"aten::relu_\""), HasSubstr("writes to its arguments"));
  EXPECT_THAT(ErrorOf("operator = \"aten::relu\", dim = 1"), HasSubstr("no argument 'dim'"));
  EXPECT_THAT(ErrorOf("operator = \"aten::relu\", arguments = [\"me\"]"),
              HasSubstr("no argument 'me'"));
  EXPECT_THAT(ErrorOf("operator = \"aten::relu\"", "x, x"),
              HasSubstr("more inputs than arguments"));
  EXPECT_THAT(ErrorOf("operator = \"aten::mm\""), HasSubstr("argument 'mat2' is missing"));
  EXPECT_THAT(ErrorOf("operator = \"aten::cumsum\", dim = [1, 2]"),
              HasSubstr("'dim' takes one number"));
  EXPECT_THAT(ErrorOf("operator = \"aten::cumsum\", dim = 0, dtype = \"float7\""),
              HasSubstr("'dtype' cannot be 'float7'"));
  EXPECT_THAT(ErrorOf("operator = \"aten::cumsum\", dim = 3"), HasSubstr("range"));
  EXPECT_THAT(ErrorOf("operator = \"caesura_test::fail\""), HasSubstr("the user's own words"));
}

// dx and dw of sum(f(x, w) * dy) as PyTorch has them.
TEST(AtenOpTest, GradientsThroughTheRegisteredDerivative) {
  SplitModuleOptions options;
  options.providers = Providers();
  options.inputs = {"x"};
  auto module = SplitModule::Create(
                    Parse("g (float[3, 4] x) => (float[3, 4] y) <float[4] w = {1, 2, -3, 0.5}> {\n"
                          "a = Mul (x, x)\n"
                          "y = org.pytorch.aten.ATen <operator = \"aten::native_layer_norm\",\n"
                          "  normalized_shape = [4], arguments = [\"input\", \"weight\"],\n"
                          "  eps = double[1] {1e-5}> (a, w) }"),
                    options)
                    .value();
  auto run = module->Forward({{"x", FromTorch(kX).value()}}).value();
  const at::Tensor dy = at::rand({3, 4});
  const auto gradients = run.Backward({FromTorch(dy).value()}).value();
  at::Tensor x = kX.clone().set_requires_grad(true),
             w = at::tensor({1.f, 2.f, -3.f, 0.5f}).set_requires_grad(true);
  std::get<0>(at::native_layer_norm(x * x, at::IntArrayRef{4}, w, {}, 1e-5)).backward(dy);
  EXPECT_TRUE(at::allclose(ToTorch(gradients[0].tensor()).value(), x.grad(), 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(ToTorch(gradients[1].tensor()).value(), w.grad(), 1e-5, 1e-6));
}

TEST(AtenOpTest, GradientsUnderModesAndOfSeveralResults) {
  const char graph[] =
      "g (float[3, 4] x) => (float[3] y) <int64[3] i, float[3] a, float[3] b, float[3] s> {\n"
      "a, i = org.pytorch.aten.ATen <operator = \"aten::max\", overload_name = \"dim\", dim = 1> "
      "(x)\n"
      "s, b = org.pytorch.aten.ATen <operator = \"aten::var_mean\", overload_name = \"dim\", dim = "
      "[1],\n"
      "  unbiased = 0> (x)\n"
      "c = Mul (a, b)\n y = Add (c, s) }";
  SplitModuleOptions options;
  options.providers = Providers();
  options.inputs = {"x"};
  auto module = SplitModule::Create(Parse(graph), options).value();
  at::Tensor x = kX.clone().set_requires_grad(true);
  const auto [variance, mean] = at::var_mean(x, at::IntArrayRef{1}, false);
  (std::get<0>(at::max(x, 1)) * mean + variance).sum().backward();
  const c10::InferenceMode inference;
  auto run = module->Forward({{"x", FromTorch(kX).value()}}).value();
  const auto gradients = run.Backward({FromTorch(at::ones({3})).value()}).value();
  EXPECT_TRUE(at::allclose(ToTorch(gradients[0].tensor()).value(), x.grad(), 1e-5, 1e-6));
}

TEST(AtenOpTest, GradientsThatCannotBe) {
  const auto error = [](const std::string& op) {
    SplitModuleOptions options;
    options.providers = Providers();
    options.inputs = {"x"};
    auto module = SplitModule::Create(
        Parse("g (float[3] x) => (float[3] y) { y = org.pytorch.aten.ATen <" + op + "> (x) }"),
        options);
    if (!module.ok()) return module.status().ToString();
    auto run = (*module)->Forward({{"x", FromTorch(at::full({3}, 0.5)).value()}});
    if (!run.ok()) return run.status().ToString();
    return run->Backward({FromTorch(at::ones({3})).value()}).status().ToString();
  };
  EXPECT_THAT(error("operator = \"aten::bernoulli\""), HasSubstr("draws random numbers"));
  EXPECT_THAT(error("operator = \"caesura_test::describe\", dtype = \"float32\", text = \"\", "
                    "factors = [0.0, 0.0], flag = 0"),
              HasSubstr("OK"));  // composed of operators with derivatives
}

TEST(AtenOpTest, TheLibraryTellsAnotherMinorVersion) {
  KernelRegistry registry;
  const std::string built = TORCH_VERSION, minor = built.substr(0, built.rfind('.'));
  EXPECT_THAT(CaesuraTorchKernels((minor + "0.0").c_str(), &registry),
              HasSubstr("was built with PyTorch"));
  EXPECT_THAT(CaesuraTorchKernels("1.2.3", &registry), HasSubstr("was built with PyTorch"));
  EXPECT_THAT(CaesuraTorchKernels("2", &registry), HasSubstr("was built with PyTorch"));
  EXPECT_TRUE(registry.defs().empty());
  EXPECT_EQ(CaesuraTorchKernels((minor + ".99+cpu").c_str(), &registry), nullptr);
  EXPECT_EQ(registry.defs().size(), 2u);
}

}  // namespace
}  // namespace caesura::torch
