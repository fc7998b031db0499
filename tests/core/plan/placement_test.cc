// SPDX-License-Identifier: Apache-2.0
// Plans over two devices: who runs where, what is copied, when and how often, and that results are
// the CPU's.
#include "core/plan/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/providers/counting_provider.h"
#include "core/providers/cpu_provider.h"
#include "core/runtime/plan_cache.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using When = PlannedCopy::When;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A run whose feeds and results are on the host.
struct Counted {
  DeviceCounts counts;
  Values results;
  std::shared_ptr<const ExecutionPlan> plan;
};
Counted RunOn(CountingDevice& device, const std::string& body, const Values& feeds,
              PlanOptions options = {}) {
  Counted run;
  run.plan = PlanOf(GraphOf(body), feeds, std::move(options), device.providers());
  device.Reset();
  run.results = RunPlan(run.plan, feeds);
  run.counts = device.counts();
  EXPECT_TRUE(
      SameBits(run.results, RunPlan(PlanOf(GraphOf(body), feeds, {}, {MakeCpuProvider()}), feeds)));
  return run;
}

int CopiesOf(const ExecutionPlan& plan, When when) {
  int count = 0;
  for (const PlannedCopy& copy : plan.copies()) count += copy.when == when;
  return count;
}

constexpr char kProduct[] =
    R"((float[2, 3] x) => (float[2, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
  h = Relu (x)
  y = MatMul (h, w)
})";

TEST(Placement, CopiesFeedsInAndResultsOut) {
  CountingDevice device({.close_pages = true});
  const Counted run = RunOn(device, kProduct, {Ramp(Shape{2, 3})});
  EXPECT_EQ(run.counts.kernels, 2u);
  EXPECT_EQ(run.counts.copies_to_device, 1u);
  EXPECT_EQ(run.counts.bytes_to_device, 24u);
  EXPECT_EQ(run.counts.copies_to_host, 1u);  // the result, when it is handed out
  EXPECT_EQ(run.counts.bytes_to_host, 16u);
  EXPECT_EQ(run.counts.synchronisations, 1u);
  EXPECT_EQ(CopiesOf(*run.plan, When::kPlanning), 1);  // w
  EXPECT_EQ(CopiesOf(*run.plan, When::kStep), 1);
  EXPECT_EQ(CopiesOf(*run.plan, When::kHandedOut), 1);
  EXPECT_EQ(run.plan->steps()[0].kind, PlanStep::Kind::kCopy);
  EXPECT_THAT(run.plan->ToString(),
              HasSubstr("copies a run: 1 to a device, 0 to the host (each waits), 1 handed out; 1 "
                        "constants and parameters before"));
  EXPECT_THAT(run.plan->ToString(), HasSubstr("0 copy [Relu "));
}

// Relu has no kernel on the device: x -> host, h -> device, y. x is read on both sides, and copied
// once.
TEST(Placement, FallsBackToTheHostForAnOp) {
  CountingDevice device({.without = {"Relu"}, .close_pages = true});
  const Counted run = RunOn(device, R"((float[4] x) => (float[4] y) {
    a = Neg (x)
    b = Abs (x)
    h = Relu (a)
    c = Add (h, b)
    y = Mul (c, h)
  })",
                            {Ramp(Shape{4})});
  EXPECT_EQ(run.counts.kernels, 4u);
  EXPECT_EQ(run.counts.copies_to_device, 2u);  // x, h
  EXPECT_EQ(run.counts.copies_to_host, 2u);    // a, y
  EXPECT_EQ(run.counts.synchronisations, 2u);
}

TEST(Placement, PinsANodeToItsProvider) {
  CountingDevice device({});
  std::shared_ptr<Graph> graph = GraphOf(kProduct);
  graph->nodes()[0]->set_provider(kCpuProviderName);
  const Values feeds = {Ramp(Shape{2, 3})};
  auto plan = PlanOf(graph, feeds, {}, device.providers());
  EXPECT_EQ(plan->steps()[0].provider->name(), kCpuProviderName);
  EXPECT_EQ(plan->steps().back().provider->name(), "counting:0");
}

TEST(Placement, TakesFeedsAndLeavesResultsOnTheDevice) {
  CountingDevice device({.close_pages = true});
  const Tensor host = Ramp(Shape{2, 3}).tensor();
  const Tensor there = CopyToDevice(host, *device.providers()[0]).value();
  auto plan =
      PlanOf(GraphOf(kProduct), {there}, {.fetch_devices = {std::nullopt}}, device.providers());
  device.Reset();
  const Values results = RunPlan(plan, {there});
  EXPECT_EQ(results[0].tensor().device(), device.device());
  EXPECT_EQ(device.counts().copies_to_device + device.counts().copies_to_host, 0u);
  EXPECT_EQ(device.counts().synchronisations, 0u);
  // A feed elsewhere than the plan was made for is refused, and gets a plan of its own from a
  // cache.
  ExecutionState state(plan);
  EXPECT_FALSE(state.Start({host}, {}).ok());
  PlanCache cache(GraphOf(kProduct), device.providers(), {});
  ASSERT_TRUE(cache.Get({there}).ok());
  ASSERT_TRUE(cache.Get({host}).ok());
  EXPECT_EQ(cache.plans_made(), 2);
}

TEST(Placement, CopiesInitializersOnceForAllPlans) {
  CountingDevice device({});
  std::shared_ptr<Graph> graph =
      GraphOf(R"((float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
    a = MatMul (x, w)
    b = Neg (w)
    c = MatMul (x, b)
    y = Add (a, c)
  })");
  PlanCache cache(graph, device.providers(),
                  WithSubgraphs({.fold_constants = false}, device.providers()));
  device.Reset();
  for (const int64_t rows : {1, 2, 5}) ASSERT_TRUE(cache.Get({Ramp(Shape{rows, 3})}).ok());
  EXPECT_EQ(device.counts().copies_to_device, 1u);
}

// A parameter is copied when it has changed, not in every run.
TEST(Placement, CopiesParametersOnceAVersion) {
  CountingDevice device({});
  std::shared_ptr<Graph> graph = GraphOf(kProduct);
  const Values feeds = {Ramp(Shape{2, 3})};
  auto plan = PlanOf(graph, feeds, {.parameters = {graph->FindValue("w")}}, device.providers());
  ParameterSet parameters;
  parameters.Add("w", Ramp(Shape{3, 2}).tensor());
  ValueCache cache(plan->cache_entries());
  auto copies = [&] {
    device.Reset();
    RunPlan(plan, feeds, {.parameters = &parameters, .cache = &cache});
    return device.counts().copies_to_device;
  };
  EXPECT_EQ(copies(), 2u);  // x and w
  EXPECT_EQ(copies(), 1u);
  parameters.Touch(0);
  EXPECT_EQ(copies(), 2u);
}

// A parameter that lives on the device is updated there; one that lives on the host is not updated
// through a copy.
TEST(Placement, UpdatesInPlaceWhereTheParameterLives) {
  const auto more = [](KernelRegistry& registry) {
    registry.Add({.op_type = "Accumulate",
                  .domain = "test",
                  .aliases = {InPlace(0, 0)},
                  .create = CreateAccumulate});
  };
  CountingDevice device({.more = more, .close_pages = true});
  const std::string body =
      "(float[4] x) => (float[4] y) <float[4] w = {0, 0, 0, 0}> { y = test.Accumulate (w, x) }";
  const Tensor x = Floats(Shape{4}, {1, 2, 3, 4}).tensor();
  for (const bool on_device : {true, false}) {
    std::shared_ptr<Graph> graph = GraphOf(body);
    const Value* w = graph->FindValue("w");
    const Tensor initial = *graph->Initializer(w);
    const Tensor there =
        on_device ? CopyToDevice(initial, *device.providers()[0]).value() : initial;
    graph->SetInitializer(graph->FindValue("w"), there);
    auto plan = TryPlan(graph, {x}, {.parameters = {w}}, device.providers());
    if (!on_device) {
      ASSERT_FALSE(plan.ok());
      EXPECT_THAT(plan.status().message(),
                  HasSubstr("updates 'w' in place, which is on another device"));
      continue;
    }
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    ParameterSet parameters;
    parameters.Add("w", there);
    for (const float times : {1.0f, 2.0f}) {
      EXPECT_THAT(ToFloats(RunPlan(*plan, {x}, {.parameters = &parameters})[0]),
                  ElementsAre(times, 2 * times, 3 * times, 4 * times));
    }
  }
}

// Yields hand out on the device, and take in from where the caller has it.
TEST(Placement, CutsAtYieldsWithoutCopies) {
  CountingDevice device({.close_pages = true});
  std::shared_ptr<Graph> graph = GraphOf(R"((float[4] x) => (float[4] y) {
    h = Neg (x)
    g = ai.caesura.YieldOp (h)
    y = Mul (g, h)
  })");
  const Tensor x = CopyToDevice(Ramp(Shape{4}).tensor(), *device.providers()[0]).value();
  auto plan = PlanOf(graph, {x}, {}, device.providers());
  for (const bool host_gradient : {false, true}) {
    ExecutionState state(plan);
    device.Reset();
    ASSERT_TRUE(state.Start({x}, {}).ok());
    ASSERT_EQ(PartialExecutor::Run(state).value(), RunOutcome::kYielded);
    const Values handed = state.TakeYielded();
    EXPECT_EQ(handed[0].tensor().device(), device.device());
    auto clone = state.Clone();
    ASSERT_TRUE(clone.ok()) << clone.status().ToString();
    ASSERT_TRUE((*clone)->Relocate(0xff).ok());
    EXPECT_EQ(device.counts().copies_to_host, 0u);
    const uint64_t before = device.counts().copies_to_device;
    ASSERT_TRUE(
        (*clone)->Resume({host_gradient ? Floats(Shape{4}, {1, 1, 1, 1}) : handed[0]}).ok());
    EXPECT_EQ(device.counts().copies_to_device, before + (host_gradient ? 1 : 0));
    ASSERT_EQ(PartialExecutor::Run(**clone).value(), RunOutcome::kFinished);
    const std::vector<float> y = ToFloats((*clone)->TakeFetches()[0]),
                             given = ToFloats(Ramp(Shape{4}));
    for (size_t i = 0; i < y.size(); ++i)
      EXPECT_EQ(y[i], host_gradient ? -given[i] : given[i] * given[i]);
  }
}

// The shape shows only at run time: dynamic steps allocate on their device and read shapes on the
// host.
TEST(Placement, RunsLateStepsOnTheDevice) {
  CountingDevice device({.close_pages = true});
  const Counted run = RunOn(device, R"((float[6] x, int64[2] shape) => (float[A, B] y) {
    r = Reshape (x, shape)
    y = Neg (r)
  })",
                            {Ramp(Shape{6}), Tensor::Of<int64_t>(Shape{2}, {2, 3})});
  EXPECT_EQ(run.counts.kernels, 2u);
  EXPECT_EQ(run.counts.copies_to_device, 1u);
  EXPECT_EQ(run.counts.copies_to_host, 1u);
  EXPECT_EQ(run.counts.synchronisations, 1u);
}

// Views with strides stay on one device; a reader elsewhere gets its elements in order.
TEST(Placement, CopiesNoViews) {
  CountingDevice device({.without = {"Abs"}, .close_pages = true});
  RunOn(device, R"((float[2, 3] x) => (float[3, 2] y, float[2, 1] z) <int64[2] sizes = {2, 1}> {
    n = Neg (x)
    t = Transpose <perm = [1, 0]> (n)
    y = Abs (t)
    a, b = Split <axis = 1> (n, sizes)
    z = Abs (b)
  })",
        {Ramp(Shape{2, 3})});
}

// Cut at every step, moved and poisoned in between.
TEST(Placement, SurvivesCutsAnywhere) {
  CountingDevice device({.without = {"Relu"}, .close_pages = true});
  const Values feeds = {Ramp(Shape{4, 4})};
  auto plan = PlanOf(GraphOf(R"((float[4, 4] x) => (float[4, 4] y) {
    a = MatMul (x, x)
    b = Relu (a)
    c = MatMul (b, a)
    y = Relu (c)
  })"),
                     feeds, {}, device.providers());
  const Values expected = RunPlan(plan, feeds);
  ExecutionState state(plan);
  ASSERT_TRUE(state.Start(feeds, {}).ok());
  ASSERT_TRUE(RunInPieces(state, 1).ok());
  EXPECT_TRUE(SameBits(state.TakeFetches(), expected));
}

TEST(Placement, FillsTheCallersBuffers) {
  CountingDevice device({.close_pages = true});
  const Values feeds = {Ramp(Shape{2, 3})};
  auto plan = PlanOf(GraphOf(kProduct), feeds, {}, device.providers());
  const Tensor mine = Tensor::Zeros(DType::kFloat32, Shape{2, 2});
  const Values results = RunPlan(plan, feeds, {.fetch_buffers = {mine}});
  EXPECT_EQ(results[0].tensor().raw(), mine.raw());
  EXPECT_TRUE(SameBits(results[0], RunPlan(plan, feeds)[0]));
}

TEST(Placement, RefusesDevicesThatNobodyServes) {
  CountingDevice device({});
  const Tensor there = CopyToDevice(Ramp(Shape{2, 3}).tensor(), *device.providers()[0]).value();
  const auto plan = TryPlan(GraphOf(kProduct), {there}, {}, {MakeCpuProvider()});
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(plan.status().message(), HasSubstr("'x' is on device:0, which no provider serves"));
}

}  // namespace
}  // namespace caesura::testing
