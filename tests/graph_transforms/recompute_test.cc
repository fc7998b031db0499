// SPDX-License-Identifier: Apache-2.0
// recompute: which nodes run again, and steps of real models within a budget beside the same steps
// without one.
#include "graph_transforms/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/onnx/model_reader.h"
#include "core/onnx/inference/shape_inference.h"
#include "tests/training/real_step.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Ends with nodes of the backward part, an update in place of w between them.
Model Parse() {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["": 23, "ai.caesura": 1]>
    g (float[4,8] x, float[8,8] w) => (float[4,8] da, float[4,8] dc) {
      p = MatMul (x, w) a = Exp (p) t = Transpose <perm = [1, 0]> (a) b = Transpose <perm = [1, 0]> (t) c = Tanh (b)
      da = Mul (a, x) u = ai.caesura.Assign (w, w) dc = Sum (c, b, p) })")
                    .value();
  const auto& nodes = model.graph->nodes();
  for (size_t i = 5; i < nodes.size(); ++i) {
    nodes[i]->set_phase(nodes[i]->Is("Assign", kCaesuraDomain) ? Phase::kOptimizer
                                                               : Phase::kBackward);
  }
  Value* w = model.graph->FindValue("w");
  model.graph->RemoveInput(w);
  model.graph->SetInitializer(w, Tensor::Zeros(DType::kFloat32, Shape{8, 8}));
  return model;
}

std::vector<std::string> NodesAfter(std::unordered_set<std::string> nodes,
                                    std::unordered_set<std::string> views) {
  Model model = Parse();
  std::unordered_set<std::string> names;
  for (const auto& node : model.graph->nodes()) {  // by op and output, as the text gives no names
    if (nodes.count(node->output(0)->name()) > 0) names.insert(node->name());
  }
  std::unordered_set<std::string> view_names;
  for (const auto& node : model.graph->nodes()) {
    if (views.count(node->output(0)->name()) > 0) view_names.insert(node->name());
  }
  EXPECT_TRUE(RunPasses({MakeRecomputePass(std::move(names), std::move(view_names))}, model).ok());
  std::vector<std::string> out;
  for (const auto& node : model.graph->nodes()) {
    std::string text = node->output(0)->name() + "=" + node->op_type();
    for (const Value* input : node->inputs()) text += " " + input->name();
    out.push_back(std::move(text));
  }
  return out;
}

TEST(RecomputePass, NodesRunAgainAheadOfTheirFirstBackwardReader) {
  EXPECT_THAT(
      NodesAfter({"a"}, {"t", "b"}),
      ElementsAre("p=MatMul x w", "a=Exp p", "t=Transpose a", "b=Transpose t", "c=Tanh b",
                  "a/again=Exp p", "da=Mul a/again x", "u=Assign w w", "t/again=Transpose a/again",
                  "b/again=Transpose t/again", "dc=Sum c b/again p"));
}

TEST(RecomputePass, WhatReadsAnUpdatedValueStays) {
  EXPECT_THAT(NodesAfter({"p", "a"}, {}),
              ::testing::Contains("p/again=MatMul x w"));  // for da, ahead of the update
  EXPECT_THAT(NodesAfter({"p"}, {}),
              ::testing::Not(::testing::Contains(HasSubstr("p/again"))));  // for dc, after it
}

class MemoryBudget : public ::testing::TestWithParam<MakesReal> {};

TEST_P(MemoryBudget, StepsWithinItHaveTheSameBits) {
  RealModel real = GetParam().make();
  real.options.step.clip_norm = 0;
  for (const CommitMode commit : {CommitMode::kLate, CommitMode::kEagerConsume}) {
    real.options.step.commit = commit;
    real.options.memory_budget = 0;
    const size_t whole = SessionOf(real)->runs().Plan(real.batches[0]).value()->arena_bytes();
    const Trained expected = StepRunner(real).BySession();
    int fitted = 0;
    for (const double part : {0.95, 0.9, 0.85, 0.8, 0.7}) {
      real.options.memory_budget = static_cast<size_t>(part * static_cast<double>(whole));
      const auto session = SessionOf(real);
      const auto plan = session->runs().Plan(real.batches[0]);
      if (!plan.ok()) {
        EXPECT_EQ(plan.status().code(), StatusCode::kOutOfMemory);
        EXPECT_THAT(plan.status().message(), HasSubstr("expected at least"));
        continue;
      }
      ++fitted;
      EXPECT_LE((*plan)->arena_bytes(), real.options.memory_budget);
      for (size_t i = 0; i < real.batches.size(); ++i) {
        const double loss = session->Step(real.batches[i]).value();
        EXPECT_EQ(static_cast<float>(loss), *expected.losses[i].tensor().data<float>()) << part;
      }
      const std::vector<std::string> names = session->parameters().Names();
      for (size_t i = 0; i < names.size(); ++i) {
        EXPECT_TRUE(
            SameBits({session->parameters().Get(names[i]).value()}, {expected.parameters[i]}))
            << names[i];
      }
    }
    EXPECT_GE(fitted, 1);
    real.options.memory_budget = 1;
    const auto loss = SessionOf(real)->Step(real.batches[0]);
    ASSERT_FALSE(loss.ok());
    EXPECT_EQ(loss.status().code(), StatusCode::kOutOfMemory);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, MemoryBudget,
                         ::testing::Values(MakesReal{"Digits", Digits},
                                           MakesReal{"DigitsWithDropout", DigitsWithDropout},
                                           MakesReal{"CharGpt", CharGpt}),
                         MakesReal::Name);

// A Dropout that runs again drops the same elements.
TEST(RecomputePass, RandomNodesDrawTheSameNumbersAgain) {
  const RealModel real = DigitsWithDropout();
  const StepRunner runner(real);
  Model model;
  model.graph = runner.graph();
  std::unordered_set<std::string> dropouts;
  for (const auto& node : model.graph->nodes()) {
    if (node->Is("Dropout")) dropouts.insert(node->name());
  }
  ASSERT_EQ(dropouts.size(), 1u);
  const auto records = RunPasses({MakeRecomputePass(dropouts, {})}, model);
  ASSERT_TRUE(records.ok() && records->front().changed);
  auto train = [&](const std::shared_ptr<const ExecutionPlan>& plan) {
    ExecutionState state(plan);
    return runner.Train(state, [](ExecutionState& s) { return PartialExecutor::Run(s); }).value();
  };
  const auto plan = runner.PlanOf(model.graph, 1);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_TRUE(train(*plan) == train(runner.PlanOf(runner.graph(), 1).value()));
}

}  // namespace
}  // namespace caesura::testing
