// SPDX-License-Identifier: Apache-2.0
// Shape chains in and through the bodies of If, Loop and Scan, and across yields.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph_transforms/shapes/cpu_fallback.h"
#include "tests/graph_transforms/device_run.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The chain stands outside, its end inside: an implicit input.
TEST(CpuFallbackBodies, ReachOuterChainsThroughImplicitInputs) {
  const DeviceRun on =
      RunChecked(R"((float[6] x, int64[1] dim, bool flag) => (float[A, B] y)
      <int64[1] one = {1}, int64[1] rest = {-1}> {
    [add] a = Add (dim, one)
    [choose] y = If (flag) <
      then_branch = then_body () => (float[A, B] t) {
        [inner] shape = Concat <axis = 0> (a, rest)
        [reshape] t = Reshape (x, shape)
      },
      else_branch = else_body () => (float[A, B] e) {
        [other] shape2 = Concat <axis = 0> (rest, a)
        [reshape2] e = Reshape (x, shape2)
      }>
  })",
                 {Ramp(Shape{6}), Ints(Shape{1}, {1}), RuntimeValue(Tensor::Scalar<bool>(true))});
  EXPECT_THAT(on.on_host, ElementsAre("add", "inner", "other"));
  EXPECT_EQ(on.counts.copies_to_host, 0u);
  EXPECT_EQ(on.counts.copies_to_device, 0u);
}

// The shape is what If gives back: both branches make it on the host.
TEST(CpuFallbackBodies, MoveWhatIfGivesBack) {
  const char* body =
      R"((float[6] x, int64[1] dim, bool flag) => (float[A, B] y) <int64[1] one = {1}, int64[1] rest = {-1}> {
    [choose] d = If (flag) <
      then_branch = then_body () => (int64[1] t) { [plus] t = Add (dim, one) },
      else_branch = else_body () => (int64[1] e) { [times] e = Mul (dim, one) }>
    [shape] shape = Concat <axis = 0> (d, rest)
    [reshape] y = Reshape (x, shape)
  })";
  for (const bool flag : {true, false}) {
    const DeviceRun on = RunChecked(
        body, {Ramp(Shape{6}), Ints(Shape{1}, {2}), RuntimeValue(Tensor::Scalar<bool>(flag))});
    EXPECT_THAT(on.on_host, ElementsAre("plus", "shape", "times"));
    EXPECT_EQ(on.counts.copies_to_host, 0u);
    EXPECT_EQ(on.counts.copies_to_device, 0u);
  }
}

// One branch reads the device's data: what If gives back is on the device, and copied once.
TEST(CpuFallbackBodies, LeaveAnIfThatDependsOnData) {
  const char* body =
      R"((float[6] x, int64[1] dim, bool flag) => (float[A, B] y) <int64[1] one = {1}, int64[1] rest = {-1}> {
    [choose] d = If (flag) <
      then_branch = then_body () => (int64[1] t) { [plus] t = Add (dim, one) },
      else_branch = else_body () => (int64[1] e) { [found] e = ArgMax <axis = 0> (x) }>
    [shape] shape = Concat <axis = 0> (d, rest)
    [reshape] y = Reshape (x, shape)
  })";
  for (const bool flag : {true, false}) {
    // Ramp: 0.25 -0.5 0.75 -1 1.25 -1.5, the largest at 4: not a divisor of 6
    const RuntimeValue x = Floats(Shape{6}, {0, 1, 5, 2, 3, 4});
    const DeviceRun on =
        RunChecked(body, {x, Ints(Shape{1}, {2}), RuntimeValue(Tensor::Scalar<bool>(flag))});
    EXPECT_THAT(on.on_host, ElementsAre("shape"));
    EXPECT_EQ(on.counts.copies_to_host, 1u);
  }
}

// n = dim doubled three times, in a loop whose counter and sums are carried: all on the host.
TEST(CpuFallbackBodies, MoveWhatLoopsCarry) {
  const DeviceRun on =
      RunChecked(R"((float[1] x, int64[1] dim) => (float[A] y) <int64 trips = {3}, bool go = {1}> {
    [loop] n = Loop (trips, go, dim) <body = body (int64 i, bool c, int64[1] before) => (bool c2, int64[1] after) {
      [go_on] c2 = Identity (c)
      [twice] after = Add (before, before)
    }>
    [y] y = Expand (x, n)
  })",
                 {Ramp(Shape{1}), Ints(Shape{1}, {2})});
  EXPECT_EQ(on.results[0].tensor().shape(), (Shape{16}));
  EXPECT_EQ(on.on_host.count("twice"), 1u);
  EXPECT_EQ(on.counts.copies_to_host, 0u) << on.report.ToString();
  EXPECT_EQ(on.counts.copies_to_device, 0u);
}

// A float is carried beside the shape: it stays on the device.
TEST(CpuFallbackBodies, KeepCarriedFloatsOnTheDevice) {
  const DeviceRun on = RunChecked(R"((float[2] x, int64[1] dim) => (float[A] y, float[2] z)
      <int64 trips = {3}, bool go = {1}, float[1] unit = {1}> {
    [loop] n, z = Loop (trips, go, dim, x) <
      body = body (int64 i, bool c, int64[1] before, float[2] state) => (bool c2, int64[1] after, float[2] next) {
        [go_on] c2 = Identity (c)
        [twice] after = Add (before, before)
        [double] next = Add (state, state)
      }>
    [y] y = Expand (unit, n)
  })",
                                  {Ramp(Shape{2}), Ints(Shape{1}, {2})});
  EXPECT_EQ(on.counts.copies_to_host, 0u) << on.report.ToString();
  EXPECT_EQ(on.counts.copies_to_device, 0u);
  EXPECT_EQ(on.counts.kernels, 4u);  // three additions and Expand
}

TEST(CpuFallbackBodies, MayBeNested) {
  const DeviceRun on =
      RunChecked(R"((float[6] x, int64[1] dim, bool flag) => (float[A, B] y)
      <int64[1] one = {1}, int64[1] rest = {-1}, int64 trips = {2}, bool go = {1}> {
    [choose] d = If (flag) <
      then_branch = then_body () => (int64[1] t) {
        [loop] t = Loop (trips, go, dim) <body = body (int64 i, bool c, int64[1] before) => (bool c2, int64[1] after) {
          [go_on] c2 = Identity (c)
          [plus] after = Add (before, one)
        }>
      },
      else_branch = else_body () => (int64[1] e) { [times] e = Mul (dim, one) }>
    [shape] shape = Concat <axis = 0> (d, rest)
    [reshape] y = Reshape (x, shape)
  })",
                 {Ramp(Shape{6}), Ints(Shape{1}, {1}), RuntimeValue(Tensor::Scalar<bool>(true))});
  EXPECT_EQ(on.results[0].tensor().shape(), (Shape{3, 2}));
  EXPECT_EQ(on.counts.copies_to_host, 0u) << on.report.ToString();
  EXPECT_EQ(on.counts.copies_to_device, 0u);
}

// Scan works in host memory; what its body does with shapes is on the host too.
TEST(CpuFallbackBodies, RunScansOnTheHost) {
  const DeviceRun on =
      RunChecked(R"((float[1] x, int64[1] dim, int64[3, 1] steps) => (float[A] y) {
    [scan] n, all = Scan <num_scan_inputs = 1, body = body (int64[1] before, int64[1] step) => (int64[1] after, int64[1] o) {
      [plus] after = Add (before, step)
      [same] o = Identity (after)
    }> (dim, steps)
    [y] y = Expand (x, n)
  })",
                 {Ramp(Shape{1}), Ints(Shape{1}, {2}), Ints(Shape{3, 1}, {1, 2, 3})});
  EXPECT_EQ(on.results[0].tensor().shape(), (Shape{8}));
  EXPECT_EQ(on.counts.copies_to_host, 0u) << on.report.ToString();
}

// The shape is made before the yield and read after it: the state keeps it on the host.
TEST(CpuFallbackBodies, KeepShapesOnTheHostAcrossYields) {
  CountingDevice device({.close_pages = true});
  Model model;
  model.graph = GraphOf(
      R"((float[6] x, int64[1] dim) => (float[A, B] y) <int64[1] one = {1}, int64[1] rest = {-1}> {
    [add] a = Add (dim, one)
    [shape] shape = Concat <axis = 0> (a, rest)
    [h] h = Mul (x, x)
    [yield] g = ai.caesura.YieldOp (h)
    [reshape] y = Reshape (g, shape)
  })");
  model.graph->FindValue("g")->set_type(ValueType::Tensor(DType::kFloat32, Shape{6}));
  ASSERT_TRUE(RunPasses({MakeCpuFallbackPass(device.providers())}, model).ok());
  const Tensor x = Moved(Ramp(Shape{6}).tensor(), *device.providers()[0], CopyKind::kToDevice);
  const Values feeds = {x, Ints(Shape{1}, {2})};
  auto plan = PlanOf(model.graph, feeds, {.fetch_devices = {std::nullopt}}, device.providers());
  ExecutionState state(plan);
  device.Reset();
  ASSERT_TRUE(state.Start(feeds, {}).ok());
  ASSERT_EQ(PartialExecutor::Run(state).value(), RunOutcome::kYielded);
  const Values handed = state.TakeYielded();
  EXPECT_EQ(handed[0].tensor().device(), device.device());
  ASSERT_TRUE(state.Relocate(0xff).ok());
  ASSERT_TRUE(state.Resume(handed).ok());
  ASSERT_EQ(PartialExecutor::Run(state).value(), RunOutcome::kFinished);
  EXPECT_EQ(state.TakeFetches()[0].tensor().shape(), (Shape{3, 2}));
  EXPECT_EQ(device.counts().copies_to_host, 0u);
  EXPECT_EQ(device.counts().synchronisations, 0u);
}

}  // namespace
}  // namespace caesura::testing
