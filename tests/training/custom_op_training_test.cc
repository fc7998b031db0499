// SPDX-License-Identifier: Apache-2.0
// Training through ops of the user's: gradient hooks in C++ and from plug-ins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/status_macros.h"
#include "core/graph/op_def.h"
#include "core/onnx/model_reader.h"
#include "tests/test_paths.h"
#include "training/session/split_module.h"
#include "training/session/training_session.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Model TrainedOpModel(const std::string& body) {
  auto model = ParseModelText(
      "<ir_version: 10, opset_import: [\"\" : 23, \"mine\" : 1, \"test.c\" : 3, \"test.cpp\" : 1]> "
      "g " +
      body);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return *std::move(model);
}

// y = `factor` x, an option.
class TimesInstance : public OpInstance {
 public:
  explicit TimesInstance(float factor) : factor_(factor) {}
  Status CreateKernel(KernelInfo& info, const ExecutionProvider&) const override {
    const int64_t n = info.InputShape(0).elements();
    info.SetOutput(0, info.InputDType(0), info.InputShape(0));
    info.SetCompute([this, n](KernelContext& context) {
      for (int64_t i = 0; i < n; ++i)
        context.Output<float>(0)[i] = context.Input<float>(0)[i] * factor_;
    });
    return {};
  }

 private:
  const float factor_;
};

// The gradient is the op itself: it has the forward node's options, and so the factor.
CustomOp Times() {
  CustomOp op;
  op.schema = {.op_type = "Times", .domain = "mine", .type_of_output = {0}};
  op.schema.gradient = [](GradientHook& g) -> Status {
    ASSIGN_OR_RETURN(const std::vector<Value*> dx,
                     g.AddNode("Times", {g.OutputGradient(0)}, {}, "mine"));
    g.SetInputGradient(0, dx[0]);
    return {};
  };
  op.options = OptionSet{{"factor", "1"}};
  op.create_instance = [](const OpNodeInfo& info) -> Result<std::shared_ptr<const OpInstance>> {
    ASSIGN_OR_RETURN(const std::string factor, info.options.Get("factor"));
    return std::shared_ptr<const OpInstance>(std::make_shared<TimesInstance>(std::stof(factor)));
  };
  return op;
}

constexpr char kChain[] =
    "(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Mul (x, w) [one] b = mine.Times (a) "
    "[two] y = mine.Times (b) }";

Result<std::vector<float>> WeightGradient(const std::string& text, const CustomOps& ops) {
  SplitModuleOptions options;
  options.custom_ops = ops;
  ASSIGN_OR_RETURN(auto module, SplitModule::Create(TrainedOpModel(text), options));
  const Tensor x = Tensor::Of<float>(Shape{2}, {3, 4});
  ASSIGN_OR_RETURN(ForwardRun run, module->Forward({{"x", x}}));
  ASSIGN_OR_RETURN(auto gradients, run.Backward({Tensor::Of<float>(Shape{2}, {1, 1})}));
  return gradients[0].tensor().ToVector<float>();
}

TEST(CustomOpTraining, GradientsFlowThroughHooks) {
  CustomOps ops{{Times()}, {}};
  ops.options.ForNode("one").Update("factor", "10");
  ops.options.ForNode("two").Update("factor", "3");
  auto gradient = WeightGradient(kChain, ops);
  ASSERT_TRUE(gradient.ok()) << gradient.status().ToString();
  EXPECT_THAT(*gradient,
              ElementsAre(90, 120));  // 30 x: each gradient node has its own forward node's factor
}

TEST(CustomOpTraining, SessionsTrainEvaluateAndExport) {
  TrainingOptions options;
  options.step.loss = Loss::MeanSquaredError("target");
  options.step.optimizer = Sgd{.learning_rate = 0.1};
  options.custom_ops.ops = {Times()};
  options.custom_ops.options.ForNode("one").Update("factor", "2");
  auto session = TrainingSession::Create(TrainedOpModel(kChain), options);
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  const NamedValues feeds = {{"x", Tensor::Of<float>(Shape{2}, {1, 1})},
                             {"target", Tensor::Of<float>(Shape{2}, {6, 0})}};
  const double first = (*session)->Step(feeds).value();
  EXPECT_DOUBLE_EQ(first, (4.0 * 4 + 4 * 4) / 2);  // y = 2 w = {2, 4}
  double last = first;
  for (int i = 0; i < 50; ++i) last = (*session)->Step(feeds).value();
  EXPECT_LT(last, 1e-3);
  EXPECT_NEAR((*session)->Evaluate(feeds).value().loss, last, 1e-3);
  const std::string text = ModelText((*session)->parameters().TrainedModel().value());
  EXPECT_THAT(text, ::testing::Not(HasSubstr("ai.caesura.instance")))
      << "nothing of a session's own goes into files";
}

TEST(CustomOpTraining, WhatHasNoGradientIsNamed) {
  CustomOp bare = Times();
  bare.schema.gradient = nullptr;
  EXPECT_THAT(WeightGradient(kChain, {{bare}, {}}).status().message(),
              HasSubstr("[mine::Times 'one'] has no gradient: its custom op has no gradient hook"));
  CustomOp silent = Times();
  silent.schema.gradient = [](GradientHook&) { return Status(); };
  EXPECT_THAT(WeightGradient(kChain, {{silent}, {}}).status().message(),
              HasSubstr("[mine::Times 'two'] has no gradient: its gradient hook gives no gradient "
                        "for input(s) 0"));
  CustomOp refusing = Times();
  refusing.schema.gradient = [](GradientHook&) { return Unsupported("it is not smooth"); };
  EXPECT_THAT(WeightGradient(kChain, {{refusing}, {}}).status().message(),
              HasSubstr("it is not smooth"));
  CustomOp stopped = Times();
  stopped.schema.no_gradient_inputs = {0};
  EXPECT_THAT(WeightGradient(kChain, {{stopped}, {}}).status().message(),
              HasSubstr("depends on nothing that is differentiated"));
}

TEST(CustomOpTraining, PluginsBringGradients) {
  CustomOps ops;
  ASSERT_TRUE(ops.AddLibrary(testing::kTestOpsC).ok());
  ASSERT_TRUE(ops.AddLibrary(testing::kTestOpsCpp17).ok());
  auto gradient = WeightGradient(
      "(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Mul (x, w) b = test.c.Scale "
      "<factor = 7.0> (a)"
      " y = test.cpp.Blend <weights = [2.0, 0.5]> (b, a) }",
      ops);
  ASSERT_TRUE(gradient.ok()) << gradient.status().ToString();
  EXPECT_THAT(*gradient, ElementsAre(14.5 * 3, 14.5 * 4));
}

// An instance is not told the value of an initializer that is trained.
TEST(CustomOpTraining, TrainedInitializersAreNoConstants) {
  std::vector<bool> constant;
  CustomOp op = Times();
  op.schema.max_inputs = 3;
  op.schema.no_gradient_inputs = {1, 2};
  auto make = op.create_instance;
  op.create_instance = [&](const OpNodeInfo& info) {
    for (const auto& input : info.inputs) constant.push_back(input.constant.defined());
    return make(info);
  };
  SplitModuleOptions options;
  options.frozen = {"c"};
  options.custom_ops.ops = {op};
  auto module = SplitModule::Create(
      TrainedOpModel("(float[2] x) => (float[2] y) <float[2] w = {1, 2}, float[2] c = "
                     "{1, 2}> { a = Mul (x, w) y = mine.Times (a, w, c) }"),
      options);
  ASSERT_TRUE(module.ok()) << module.status().ToString();
  ASSERT_EQ(constant.size(), 4u)
      << "one instance of the node (a, w, c), and one of its gradient's (dy)";
  EXPECT_FALSE(constant[1]);
  EXPECT_TRUE(constant[2]);
}

}  // namespace
}  // namespace caesura
