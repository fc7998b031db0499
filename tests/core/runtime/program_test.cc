// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

// A program that adds x to its parameter w, and then negates it; a kernel of its provider can fail.
class RunsAProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    Model model;
    model.graph = GraphOf(R"((float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
      v = test.Accumulate (w, x)
      [negate] y = Neg (v)
    })");
    const Tensor w = model.graph->Initializer(model.graph->FindValue("w"))->Clone().value();
    parameters_.Add("w", w);
    auto fallback = std::make_shared<ProviderFallback>(
        ProviderList{provider_}, [] { return Tiny()[0]; },
        /*enabled=*/false);
    auto made =
        Program::Create(std::move(model), fallback, {.parameters = {"w"}, .plan = {.threads = 1}});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    program_ = *std::move(made);
  }
  RunResult Run(Undo undo) {
    return program_->Run(
        {.feeds = {Ramp(Shape{2}, 1.0f)}, .options = {.parameters = &parameters_}, .undo = undo});
  }
  std::vector<float> W() const { return parameters_.tensor(0).ToVector<float>(); }

  const std::shared_ptr<FailingProvider> provider_ =
      std::make_shared<FailingProvider>(Tiny()[0], "faulty", /*scribbles=*/true);
  ParameterSet parameters_;
  std::unique_ptr<Program> program_;
};

TEST_F(RunsAProgram, AndTellsWhatBecameOfTheParameters) {
  const std::vector<float> before = W();
  const RunResult done = Run(Undo::kAtRisk);
  ASSERT_TRUE(done.status.ok()) << done.status.ToString();
  EXPECT_EQ(done.parameters.state, ParameterState::kCommitted);
  EXPECT_FALSE(done.left_parameters_changed());
  const std::vector<float> after = W();
  EXPECT_NE(after, before);

  provider_->FailAt(0);  // in the middle of its writing
  EXPECT_EQ(Run(Undo::kAtRisk).parameters.state, ParameterState::kUndone);
  EXPECT_EQ(W(), after);

  provider_->FailAt(1);
  const RunResult undone = Run(Undo::kAtRisk);
  EXPECT_EQ(undone.parameters.state, ParameterState::kUndone);
  EXPECT_FALSE(undone.left_parameters_changed());
  EXPECT_EQ(W(), after);

  provider_->FailAt(1);
  const RunResult kept_nothing = Run(Undo::kNever);
  EXPECT_EQ(kept_nothing.parameters.state, ParameterState::kInconsistent);
  EXPECT_TRUE(kept_nothing.left_parameters_changed());
  EXPECT_THAT(kept_nothing.parameters.inconsistent, ::testing::ElementsAre("w"));
  EXPECT_NE(W(), after);
}

// A run that may stop at yields gives what each hands out, then the outputs.
TEST(RunsToYields, AndHandsOutEachPart) {
  Model model;
  model.graph = GraphOf(R"((float[2] x) => (float[2] c) {
      a = Neg (x)
      = ai.caesura.YieldOp (a)
      b = Neg (a)
      = ai.caesura.YieldOp (b, x)
      c = Neg (b)
    })");
  auto fallback = std::make_shared<ProviderFallback>(
      Tiny(), [] { return Tiny()[0]; },
      /*enabled=*/false);
  auto program = Program::Create(std::move(model), fallback, {.plan = {.threads = 1}}).value();
  const RuntimeValue x = Ramp(Shape{2}, 1.0f);
  EXPECT_EQ(program->Run({.feeds = {x}}).status.code(), StatusCode::kUnsupported);

  RunResult run = program->Run({.feeds = {x}, .stops_at_yields = true});
  ASSERT_TRUE(run.status.ok()) << run.status.ToString();
  ASSERT_EQ(run.values.size(), 1u);
  const RuntimeValue a = run.values[0];
  EXPECT_EQ(a.tensor().ToVector<float>()[1], -x.tensor().ToVector<float>()[1]);
  // The caller owns the values that it was given: later nodes do not read them.
  static_cast<float*>(run.values[0].tensor().raw())[1] = 100;
  ASSERT_NE(run.suspended, nullptr);
  run = program->Resume(std::move(run.suspended), {});
  ASSERT_TRUE(run.status.ok()) << run.status.ToString();
  ASSERT_EQ(run.values.size(), 2u);
  EXPECT_EQ(run.values[0].tensor().ToVector<float>(), x.tensor().ToVector<float>());
  EXPECT_EQ(run.values[1].tensor().ToVector<float>(), x.tensor().ToVector<float>());
  EXPECT_NE(run.values[1].tensor().raw(), x.tensor().raw());
  ASSERT_NE(run.suspended, nullptr);
  run = program->Resume(std::move(run.suspended), {});
  ASSERT_TRUE(run.status.ok()) << run.status.ToString();
  EXPECT_EQ(run.suspended, nullptr);
  ASSERT_EQ(run.values.size(), 1u);
  EXPECT_EQ(run.values[0].tensor().ToVector<float>()[1], -x.tensor().ToVector<float>()[1]);
}

TEST_F(RunsAProgram, AndTellsWhereItFailed) {
  provider_->FailAt(1);
  const Status status = Run(Undo::kAtRisk).status;
  ASSERT_NE(status.location(), nullptr);
  EXPECT_EQ(status.location()->node, "Neg 'negate'");
  EXPECT_EQ(status.location()->provider, "faulty");
  EXPECT_EQ(status.location()->what, "planted failure");
  EXPECT_THAT(status.message(), HasSubstr("[Neg 'negate' on faulty] planted failure"));
  const Status prefixed = status.WithPrefix("a step: ");
  ASSERT_NE(prefixed.location(), nullptr);
  EXPECT_EQ(prefixed.location()->node, "Neg 'negate'");
}

}  // namespace
}  // namespace caesura::testing
