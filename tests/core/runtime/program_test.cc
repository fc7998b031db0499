// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
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

std::unique_ptr<Program> ProgramOf(const std::string& body, ProviderList providers = Tiny()) {
  Model model;
  model.graph = GraphOf(body);
  auto fallback =
      std::make_shared<ProviderFallback>(std::move(providers), [] { return Tiny()[0]; });
  return Program::Create(std::move(model), fallback, {.plan = {.threads = 1}}).value();
}

std::vector<float> FloatsOf(const RunResult& result) {
  return result.values.at(0).tensor().ToVector<float>();
}

// A run that may stop at yields gives what each hands out, then the outputs.
TEST(RunsToYields, AndHandsOutEachPart) {
  const auto program = ProgramOf(R"((float[2] x) => (float[2] c) {
      a = Neg (x)
      = ai.caesura.YieldOp (a)
      b = Neg (a)
      = ai.caesura.YieldOp (b, x)
      c = Neg (b)
    })");
  const RuntimeValue x = Ramp(Shape{2}, 1.0f);
  EXPECT_EQ(program->Run({.feeds = {x}}).status.code(), StatusCode::kUnsupported);

  RunResult run = program->Run({.feeds = {x}, .at_yield = AtYield::kWait});
  ASSERT_TRUE(run.status.ok()) << run.status.ToString();
  ASSERT_EQ(run.values.size(), 1u);
  const RuntimeValue a = run.values[0];
  EXPECT_EQ(a.tensor().ToVector<float>()[1], -x.tensor().ToVector<float>()[1]);
  // The caller owns the values that it was given: later nodes do not read them.
  static_cast<float*>(run.values[0].tensor().raw())[1] = 100;
  ASSERT_TRUE(run.waiting);
  run = run.waiting.GoOn({});
  ASSERT_TRUE(run.status.ok()) << run.status.ToString();
  ASSERT_EQ(run.values.size(), 2u);
  EXPECT_EQ(run.values[0].tensor().ToVector<float>(), x.tensor().ToVector<float>());
  EXPECT_EQ(run.values[1].tensor().ToVector<float>(), x.tensor().ToVector<float>());
  EXPECT_NE(run.values[1].tensor().raw(), x.tensor().raw());
  ASSERT_TRUE(run.waiting);
  run = run.waiting.GoOn({});
  ASSERT_TRUE(run.status.ok()) << run.status.ToString();
  EXPECT_FALSE(run.waiting);
  ASSERT_EQ(run.values.size(), 1u);
  EXPECT_EQ(run.values[0].tensor().ToVector<float>()[1], -x.tensor().ToVector<float>()[1]);
}

constexpr char kOneYield[] = R"((float[2] x) => (float[2] c) {
      a = Neg (x)
      g = ai.caesura.YieldOp (a)
      c = Neg (g)
    })";

TEST(RunsToYields, AndTakeValuesIn) {
  const auto program = ProgramOf(kOneYield);
  RunResult run = program->Run({.feeds = {Ramp(Shape{2})}, .at_yield = AtYield::kWait});
  ASSERT_TRUE(run.waiting) << run.status.ToString();
  WaitingRun waiting = std::move(run.waiting);
  // Values that do not fit lose nothing.
  EXPECT_THAT(waiting.GoOn({}).status.message(), HasSubstr("takes 1 values, got 0"));
  const RunResult kept = waiting.GoOn({.values = {Floats(Shape{2}, {1, 2})}, .keep = true});
  EXPECT_THAT(FloatsOf(kept), ElementsAre(-1, -2));
  const StateSnapshot snapshot = waiting.Capture().value();
  EXPECT_THAT(FloatsOf(waiting.GoOn({.values = {Floats(Shape{2}, {3, 4})}})), ElementsAre(-3, -4));
  EXPECT_FALSE(waiting);
  waiting = program->Restore(snapshot, {}, Undo::kNever).value();
  EXPECT_THAT(FloatsOf(waiting.GoOn({.values = {Floats(Shape{2}, {5, 6})}})), ElementsAre(-5, -6));
}

// Only a run that was begun so is done again where a provider fails after the yield, and one that
// is kept then waits on the new providers.
TEST(RunsToYields, AndRepeatsOnOtherProviders) {
  const RuntimeValue given = Floats(Shape{2}, {1, 2});
  for (const AtYield at_yield : {AtYield::kWait, AtYield::kWaitAndRepeat}) {
    const auto faulty = std::make_shared<FailingProvider>(Tiny()[0], "faulty", /*scribbles=*/true);
    const auto program = ProgramOf(kOneYield, {faulty, Tiny()[0]});
    RunResult run = program->Run({.feeds = {Ramp(Shape{2})}, .at_yield = at_yield});
    ASSERT_TRUE(run.waiting) << run.status.ToString();
    WaitingRun waiting = std::move(run.waiting);
    faulty->FailAt(0);
    const RunResult result = waiting.GoOn({.values = {given}, .keep = true});
    if (at_yield == AtYield::kWait) {
      EXPECT_EQ(result.status.code(), StatusCode::kProviderFailure);
      continue;
    }
    ASSERT_TRUE(result.status.ok()) << result.status.ToString();
    EXPECT_THAT(FloatsOf(result), ElementsAre(-1, -2));
    const int calls = faulty->calls();
    EXPECT_THAT(FloatsOf(waiting.GoOn({.values = {given}})), ElementsAre(-1, -2));
    EXPECT_EQ(faulty->calls(), calls);
  }
}

// A run that waits is given up with what it has written undone; one that is dropped leaves it.
TEST_F(RunsAProgram, AndGivesUpARunThatWaits) {
  const std::vector<float> before = W();
  const auto begin = [&] {
    return program_->Run({.feeds = {Ramp(Shape{2}, 1.0f)},
                          .options = {.parameters = &parameters_},
                          .undo = Undo::kAlways,
                          .suspend_at = 1});
  };
  RunResult run = begin();
  EXPECT_EQ(run.status.code(), StatusCode::kSuspended);
  EXPECT_NE(W(), before);
  EXPECT_EQ(run.waiting.GiveUp().state, ParameterState::kUndone);
  EXPECT_FALSE(run.waiting);
  EXPECT_EQ(W(), before);
  run = begin();
  run = {};
  EXPECT_NE(W(), before);
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
