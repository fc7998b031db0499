// SPDX-License-Identifier: Apache-2.0
// ParameterEffect: the state of the parameters when a run of a PreparedGraph has ended.
// Programs, which decide whether a run has a log, are in program_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/execute/undo_log.h"
#include "core/providers/counting_provider.h"
#include "core/providers/tensor_copy.h"
#include "core/runtime/prepared_graph.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Three kernel calls: y is computed, then w and v are updated.
class ParameterEffects : public ::testing::Test {
 protected:
  void SetUp() override { SetUp({provider_}); }
  void SetUp(const ProviderList& providers) {
    Model model;
    model.graph = GraphOf(R"((float[2] x) => (float[2] y)
        <float[2] v = {1, 1}, float[2] w = {1, 1}> {
      y = Neg (x)
      w_now = test.Accumulate (w, y)
      v_now = test.Accumulate (v, y)
    })");
    parameters_ = {};
    for (const char* name : {"v", "w"}) {
      const Tensor ones = Tensor::Of<float>(Shape{2}, {1, 1});
      const bool is_host = providers[0]->device().is_host();
      parameters_.Add(name, is_host ? ones : CopyToDevice(ones, *providers[0]).value());
    }
    auto made = PreparedGraph::Create(
        std::move(model), providers,
        {.parameters = {"v", "w"}, .parameter_set = &parameters_, .plan = {.threads = 1}});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    graph_ = *std::move(made);
  }
  // A run whose kernel call `fails` fails; -1: none does.
  ParameterEffect AfterRun(int fails, bool logged) {
    const Values feeds = {Floats(Shape{2}, {1, 2})};
    const SharedPlan plan = graph_->Plan(feeds).value();
    UndoLog log(*plan, UndoScope::kAll, /*may_hold=*/false);
    provider_->FailAt(fails);
    StartedRun run =
        graph_->Start(plan, feeds, {.parameters = &parameters_, .undo = logged ? &log : nullptr})
            .value();
    const Result<RunOutcome> outcome = PartialExecutor::Run(*run.state);
    ParameterEffect effect;
    EXPECT_EQ(graph_->EndRun(std::move(run), outcome, &effect).ok(), fails < 0);
    return effect;
  }
  std::vector<float> W() const { return parameters_.tensor(1).ToVector<float>(); }

  std::shared_ptr<FailingProvider> provider_ = std::make_shared<FailingProvider>(Tiny()[0]);
  std::shared_ptr<PreparedGraph> graph_;
  ParameterSet parameters_;
};

TEST_F(ParameterEffects, AreCommittedAtTheEnd) {
  for (const bool logged : {false, true}) {
    EXPECT_EQ(AfterRun(-1, logged).state, ParameterState::kCommitted);
  }
  EXPECT_THAT(W(), ElementsAre(-1, -3));  // 1 - 2 * 1, 1 - 2 * 2
}

TEST_F(ParameterEffects, AreUndoneWhereThereIsALog) {
  for (int fails = 0; fails < 3; ++fails) {
    const ParameterEffect effect = AfterRun(fails, true);
    EXPECT_EQ(effect.state, ParameterState::kUndone) << fails;
    EXPECT_THAT(effect.inconsistent, IsEmpty());
    EXPECT_FALSE(effect.was_interrupted);
    EXPECT_THAT(W(), ElementsAre(1, 1)) << fails;
  }
}

TEST_F(ParameterEffects, NameWhatWasWrittenWhereThereIsNone) {
  EXPECT_EQ(AfterRun(0, false).state, ParameterState::kUnchanged);
  EXPECT_THAT(W(), ElementsAre(1, 1));
  const ParameterEffect effect = AfterRun(2, false);  // v keeps its value
  EXPECT_EQ(effect.state, ParameterState::kInconsistent);
  EXPECT_THAT(effect.inconsistent, ElementsAre("w"));
  EXPECT_THAT(W(), ElementsAre(0, -1));
}

// A kernel of the host that updates in place fails, if at all, before it writes. One of a device
// may fail between two launches.
TEST_F(ParameterEffects, OfAnUpdateThatFailsDependOnItsMemory) {
  EXPECT_EQ(AfterRun(1, false).state, ParameterState::kUnchanged);
  const CountingDevice device({.more = RegisterTinyKernels});
  provider_ = std::make_shared<FailingProvider>(device.providers()[0]);
  SetUp({provider_, device.providers()[1]});
  EXPECT_EQ(AfterRun(0, false).state, ParameterState::kUnchanged);
  const ParameterEffect effect = AfterRun(1, false);
  EXPECT_EQ(effect.state, ParameterState::kInconsistent);
  EXPECT_THAT(effect.inconsistent, ElementsAre("w"));
}

TEST_F(ParameterEffects, AreNoneWhereNothingIsUpdated) {
  Model model;
  model.graph = GraphOf("(float[2] x) => (float[2] y) <float[2] v = {1, 1}> { y = Add (x, v) }");
  graph_ = PreparedGraph::Create(std::move(model), {provider_},
                                 {.parameters = {"v"}, .plan = {.threads = 1}})
               .value();
  EXPECT_EQ(AfterRun(-1, false).state, ParameterState::kUnchanged);
  EXPECT_EQ(AfterRun(0, false).state, ParameterState::kUnchanged);
}

}  // namespace
}  // namespace caesura::testing
