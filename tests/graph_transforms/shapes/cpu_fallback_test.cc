// SPDX-License-Identifier: Apache-2.0
// Where shape chains run, what that saves, and what stays where it is. Floats come on the device,
// integers on the host unless a test says otherwise; results are the CPU's bit for bit.
#include "graph_transforms/shapes/cpu_fallback.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/graph_transforms/device_run.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// --- the graph that the pass was asked for: two dims, +1 -1, Concat, Reshape, MatMul ---

constexpr char kExample[] = R"((float[N] x, int64[1] dim0, int64[1] dim1) => (float[M, K] y)
    <int64[1] one = {1}, float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
  [a] a = Add (dim0, one)
  [b] b = Sub (a, one)
  [c] c = Add (dim1, one)
  [d] d = Sub (c, one)
  [shape] shape = Concat <axis = 0> (b, d)
  [reshape] r = Reshape (x, shape)
  [matmul] y = MatMul (r, w)
})";

Values ExampleFeeds() { return {Ramp(Shape{6}), Ints(Shape{1}, {2}), Ints(Shape{1}, {3})}; }

TEST(CpuFallback, TheExampleTakesNoCopyAndNoWait) {
  const DeviceRun on = RunChecked(kExample, ExampleFeeds());
  EXPECT_EQ(on.counts.copies_to_host, 0u);
  EXPECT_EQ(on.counts.copies_to_device, 0u);
  EXPECT_EQ(on.counts.synchronisations, 0u);
  EXPECT_EQ(on.counts.kernels, 2u);  // Reshape and MatMul
  EXPECT_THAT(on.on_host, ElementsAre("a", "b", "c", "d", "shape"));
  EXPECT_EQ(on.report.to_host_before, 1);
  EXPECT_EQ(on.report.to_host_after, 0);
  EXPECT_EQ(on.report.to_device_before, 2);
  EXPECT_EQ(on.report.to_device_after, 0);
  EXPECT_THAT(on.report.ToString(),
              HasSubstr("moved shape: made on the host by [Concat 'shape']: read there by "
                        "[Reshape 'reshape'], saves a copy that the host waits for"));
}

// Off: both dims go to the device, five kernels run there, and the host waits for the shape.
TEST(CpuFallback, TheExampleSwitchedOff) {
  const DeviceRun off =
      RunOnDevice(GraphOf(kExample), ExampleFeeds(), {.mode = CpuFallbackMode::kOff});
  EXPECT_EQ(off.counts.copies_to_device, 2u);
  EXPECT_EQ(off.counts.bytes_to_device, 16u);
  EXPECT_EQ(off.counts.copies_to_host, 1u);
  EXPECT_EQ(off.counts.bytes_to_host, 16u);
  EXPECT_EQ(off.counts.synchronisations, 1u);
  EXPECT_EQ(off.counts.kernels, 7u);
  EXPECT_THAT(off.on_host, IsEmpty());
}

// A dim that lives on the device is copied once, and said so.
TEST(CpuFallback, AShapeInputOnTheDeviceIsOneCopy) {
  const DeviceRun on = RunChecked(kExample, ExampleFeeds(), {.device_inputs = {"dim0"}});
  EXPECT_EQ(on.counts.copies_to_host, 1u);
  EXPECT_EQ(on.counts.bytes_to_host, 8u);
  EXPECT_EQ(on.counts.synchronisations, 1u);
  EXPECT_EQ(on.counts.copies_to_device, 0u);
  ASSERT_EQ(on.report.stopped.size(), 1u);
  EXPECT_EQ(on.report.stopped[0].value, "dim0");
  EXPECT_THAT(on.report.stopped[0].what, HasSubstr("it is given on the device"));
}

// Two dims on the device meet in one shape: copying the shape is one copy, copying the dims would
// be two.
TEST(CpuFallback, NeverTakesMoreCopiesThanWithoutIt) {
  const DeviceRun on = RunChecked(kExample, ExampleFeeds(), {.device_inputs = {"dim0", "dim1"}});
  EXPECT_EQ(on.counts.copies_to_host, 1u);
  EXPECT_EQ(on.counts.bytes_to_host, 16u);
  EXPECT_THAT(on.on_host, IsEmpty());
}

TEST(CpuFallback, IsSwitchedByTheEnvironment) {
  Model model;
  model.graph = GraphOf(kExample);
  CountingDevice device({});
  setenv("CAESURA_AGGRESSIVE_CPU_FALLBACK", "off", 1);
  auto report = std::make_shared<CpuFallbackReport>();
  ASSERT_TRUE(RunPasses({MakeCpuFallbackPass(device.providers(), {.report = report})}, model).ok());
  EXPECT_EQ(report->mode, CpuFallbackMode::kOff);
  setenv("CAESURA_AGGRESSIVE_CPU_FALLBACK", "sometimes", 1);
  const auto refused = RunPasses({MakeCpuFallbackPass(device.providers())}, model);
  unsetenv("CAESURA_AGGRESSIVE_CPU_FALLBACK");
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(),
              HasSubstr("CAESURA_AGGRESSIVE_CPU_FALLBACK: expected on, off"));
}

TEST(CpuFallback, LeavesGraphsOfTheCpuAlone) {
  Model model;
  model.graph = GraphOf(kExample);
  const auto records = RunPasses({MakeCpuFallbackPass({MakeCpuProvider()})}, model);
  ASSERT_TRUE(records.ok());
  EXPECT_FALSE((*records)[0].changed);
}

// A kept node computes on the device: its input goes there, its output comes back.
TEST(CpuFallback, KeepsNodesThatAreToStay) {
  const DeviceRun on = RunChecked(kExample, ExampleFeeds(), {.keep = {"c"}});
  EXPECT_THAT(on.on_host, ElementsAre("a", "b", "d", "shape"));
  EXPECT_EQ(on.counts.copies_to_device, 1u);
  EXPECT_EQ(on.counts.copies_to_host, 1u);
  EXPECT_THAT(on.report.ToString(),
              HasSubstr("stays c: copied to the host: [Add 'c'] is kept where it is, as asked"));
}

TEST(CpuFallback, KeepsNodesThatArePinned) {
  std::shared_ptr<Graph> graph = GraphOf(kExample);
  for (const auto& node : graph->nodes()) {
    if (node->name() == "c") node->set_provider("counting:0");
  }
  const DeviceRun on = RunOnDevice(graph, ExampleFeeds());
  EXPECT_THAT(on.on_host, ElementsAre("a", "b", "d", "shape"));
  EXPECT_EQ(on.counts.copies_to_host, 1u);
}

// --- sharing ---

// The dim is read by a node that stays on the device, and so is what is made of it: with the dim
// there anyway, the device makes its own from it, and nothing more is copied.
TEST(CpuFallback, RunsANodeOnBothSidesRatherThanCopying) {
  const DeviceRun on = RunChecked(
      R"((float[N] x, int64[1] dim, int64[200] big) => (float[M, K] y, int64[200] p, int64[200] q)
      <int64[1] one = {1}, int64[1] rest = {-1}> {
    [p] p = Add (big, dim)
    [next] next = Add (dim, one)
    [q] q = Add (big, next)
    [shape] shape = Concat <axis = 0> (next, rest)
    [y] y = Reshape (x, shape)
  })",
      {Ramp(Shape{6}), Ints(Shape{1}, {2}), Ints(Shape{200}, std::vector<int64_t>(200, 5))},
      {.device_inputs = {"big"}});
  EXPECT_THAT(on.on_host, ElementsAre("next", "shape"));
  EXPECT_EQ(on.counts.copies_to_device, 1u);  // dim
  EXPECT_EQ(on.counts.copies_to_host, 0u);
  EXPECT_EQ(on.counts.kernels, 4u);  // p, next, q, y
}

// Three readers on the device, one copy.
TEST(CpuFallback, CopiesASharedValueOnce) {
  const DeviceRun on = RunChecked(
      R"((float[N] x, int64[1] dim, int64[200] big) => (float[M, K] y, int64[200] p, int64[200] q, int64[200] r)
      <int64[1] one = {1}, int64[1] rest = {-1}> {
    [next] next = Add (dim, one)
    [p] p = Add (big, next)
    [q] q = Mul (big, next)
    [r] r = Sub (big, next)
    [shape] shape = Concat <axis = 0> (next, rest)
    [y] y = Reshape (x, shape)
  })",
      {Ramp(Shape{6}), Ints(Shape{1}, {2}), Ints(Shape{200}, std::vector<int64_t>(200, 5))},
      {.device_inputs = {"big"}});
  EXPECT_THAT(on.on_host, ElementsAre("next", "shape"));
  EXPECT_EQ(on.counts.copies_to_device, 1u);  // next
  EXPECT_EQ(on.counts.copies_to_host, 0u);
}

}  // namespace
}  // namespace caesura::testing
