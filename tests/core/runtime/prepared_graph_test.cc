// SPDX-License-Identifier: Apache-2.0
// Graphs that are made ready, and the runs of one: what is refused, and what is kept from run to
// run. Parameters after a failure are in parameter_effect_test.cc.
#include "core/runtime/prepared_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/providers/counting_provider.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<std::shared_ptr<PreparedGraph>> Prepare(const std::string& body,
                                               const ProviderList& providers,
                                               PreparedGraphOptions options = {}) {
  Model model;
  model.graph = GraphOf(body);
  options.plan.threads = 1;
  return PreparedGraph::Create(std::move(model), providers, options);
}

Result<Values> RunOnce(PreparedGraph& graph, Values feeds, RunOptions options = {}) {
  const Result<SharedPlan> plan = graph.Plan(feeds);
  if (!plan.ok()) return plan.status();
  Result<StartedRun> run = graph.Start(*plan, std::move(feeds), std::move(options));
  return run.ok() ? graph.RunToEnd(*std::move(run)) : run.status();
}

TEST(PreparedGraph, AllNodesWithoutAKernelAreListed) {
  const Status status = Prepare(R"((float[2] x) => (float[2] y) {
    [first] a = test.Nowhere (x)
    b = Neg (a)
    [second] y = test.Nobody (b)
  })",
                                Tiny())
                            .status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("[test::Nowhere 'first']"), HasSubstr("[test::Nobody 'second']")));
}

// Drops the first node, and with it what only that one reads.
class DropFirstNode : public Pass {
 public:
  const char* name() const override { return "drop_first_node"; }
  Result<bool> Run(Model& model) override {
    model.graph->RemoveNode(model.graph->nodes()[0].get());
    model.graph->RemoveUnusedValues();
    return true;
  }
};

// The pass drops the one reader of v; v has its place among the parameters all the same.
TEST(PreparedGraph, PassesRunBeforeItIsPlanned) {
  const std::string body =
      R"((float[2] x) => (float[2] y) <float[2] v = {5, 5}, float[2] w = {1, 2}> {
    unused = Neg (v)
    y = Add (x, w)
  })";
  const PassMaker passes = [](const ProviderList& providers) -> PassList {
    EXPECT_EQ(providers.size(), 1u);
    return {std::make_shared<DropFirstNode>()};
  };
  ParameterSet parameters;
  parameters.Add("v", Tensor::Of<float>(Shape{2}, {0, 0}));
  parameters.Add("w", Tensor::Of<float>(Shape{2}, {30, 40}));
  for (const bool disabled : {false, true}) {
    auto graph = Prepare(body, Tiny(),
                         {.parameters = {"v", "w"},
                          .passes = passes,
                          .disabled_passes = disabled ? std::vector<std::string>{"drop_first_node"}
                                                      : std::vector<std::string>()});
    ASSERT_TRUE(graph.ok()) << graph.status().ToString();
    EXPECT_EQ((*graph)->graph().nodes().size(), disabled ? 2u : 1u);
    EXPECT_NE((*graph)->graph().FindValue("v"), nullptr);
    const Result<Values> results =
        RunOnce(**graph, {Floats(Shape{2}, {1, 2})}, {.parameters = &parameters});
    ASSERT_TRUE(results.ok()) << results.status().ToString();
    EXPECT_THAT(ToFloats(results->at(0)), ElementsAre(31, 42));
  }
}

// It keeps a plan for each signature, and values that depend on nothing but parameters.
TEST(PreparedGraph, KeepsPlansAndValuesFromRunToRun) {
  auto provider = std::make_shared<FailingProvider>(Tiny()[0]);
  auto graph =
      Prepare("(float[N] x) => (float[N] y) <float[1] w = {4}> { n = Neg (w) y = Mul (x, n) }",
              {provider}, {.parameters = {"w"}})
          .value();
  ParameterSet parameters;
  parameters.Add("w", Tensor::Of<float>(Shape{1}, {3}));
  const auto calls = [&](int64_t n) {
    provider->FailAt(-1);
    const Values y = RunOnce(*graph, {Ramp(Shape{n}, 1)}, {.parameters = &parameters}).value();
    EXPECT_EQ(ToFloats(y[0])[0], -parameters.tensor(0).data<float>()[0]);
    return provider->calls();
  };
  const SharedPlan plan = graph->Plan({Ramp(Shape{2})}).value();
  EXPECT_EQ(plan, graph->Plan({Ramp(Shape{2}, 3)}).value());
  EXPECT_NE(plan, graph->Plan({Ramp(Shape{3})}).value());
  EXPECT_EQ(calls(2), 2);
  EXPECT_EQ(calls(2), 1);  // n stands
  EXPECT_EQ(calls(3), 2);  // another plan has a cache of its own
  parameters.tensor(0).data<float>()[0] = 7;
  parameters.Touch(0);
  EXPECT_EQ(calls(2), 2);
}

// A set of parameters on a device is updated there; the model's own initializers are on the host.
TEST(PreparedGraph, PlansParametersWhereTheyLie) {
  CountingDevice device({.more = [](KernelRegistry& registry) {
    registry.Add({.op_type = "Accumulate",
                  .domain = "test",
                  .aliases = {InPlace(0, 0)},
                  .create = CreateAccumulate});
  }});
  const std::string body =
      "(float[2] x) => (float[2] y) <float[2] w = {1, 1}> { y = test.Accumulate (w, x) }";
  ParameterSet there;
  there.Add("w",
            CopyToDevice(Tensor::Of<float>(Shape{2}, {10, 20}), *device.providers()[0]).value());
  const Values feeds = {Floats(Shape{2}, {1, 2})};
  auto graph =
      Prepare(body, device.providers(), {.parameters = {"w"}, .parameter_set = &there}).value();
  EXPECT_THAT(ToFloats(RunOnce(*graph, feeds, {.parameters = &there}).value()[0]),
              ElementsAre(11, 22));
  auto on_host = Prepare(body, device.providers(), {.parameters = {"w"}}).value();
  EXPECT_THAT(on_host->Plan(feeds).status().message(),
              HasSubstr("updates 'w' in place, which is on another device"));
}

TEST(PreparedGraph, ARunThatYieldsHasNoEnd) {
  auto graph = Prepare(R"((float[2] x) => (float[2] y) {
    a = Neg (x)
    g = ai.caesura.YieldOp (a)
    y = Mul (g, a)
  })",
                       Tiny())
                   .value();
  const Values feeds = {Floats(Shape{2}, {1, 2})};
  EXPECT_EQ(RunOnce(*graph, feeds).status().code(), StatusCode::kUnsupported);
  // Its caller may take it from there, here by way of a snapshot.
  const SharedPlan plan = graph->Plan(feeds).value();
  StartedRun first = graph->Start(plan, feeds, {}).value();
  ASSERT_EQ(PartialExecutor::Run(*first.state).value(), RunOutcome::kYielded);
  const StateSnapshot snapshot = first.state->Capture().value();
  StartedRun second = graph->Restore(plan, snapshot, {}).value();
  graph->Return(std::move(first));
  ASSERT_TRUE(second.state->Resume({Floats(Shape{2}, {10, 10})}).ok());
  EXPECT_THAT(ToFloats(graph->RunToEnd(std::move(second)).value()[0]), ElementsAre(-10, -20));
}

TEST(PreparedGraph, WhatDoesNotFitIsRefused) {
  const std::string body = "(float[N] x) => (float[N] y) { y = Neg (x) }";
  auto graph = Prepare(body, Tiny()).value();
  const SharedPlan plan = graph->Plan({Ramp(Shape{2})}).value();
  EXPECT_THAT(graph->Start(plan, {Ramp(Shape{3})}, {}).status().message(),
              HasSubstr("feed 'x' is not of the dtype, shape or value"));
  EXPECT_EQ(graph->Restore(plan, {}, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(ToFloats(RunOnce(*graph, {Floats(Shape{2}, {1, 2})}).value()[0]),
              ElementsAre(-1, -2));  // as good as before
  auto tight = Prepare(body, Tiny(), {.fit = [](const SharedPlan&) -> Result<SharedPlan> {
                         return OutOfMemory("no plan is small enough");
                       }})
                   .value();
  EXPECT_EQ(tight->Plan({Ramp(Shape{2})}).status().code(), StatusCode::kOutOfMemory);
}

}  // namespace
}  // namespace caesura::testing
