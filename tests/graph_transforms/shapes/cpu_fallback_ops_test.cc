// SPDX-License-Identifier: Apache-2.0
// The CPU fallback of shape chains, op by op: what it must reach, and what it must leave alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph_transforms/shapes/cpu_fallback.h"
#include "tests/graph_transforms/device_run.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// --- what stays ---

// No kernel on the CPU. `without` takes it from the device instead; here the host has none, as the
// op is the test's.
TEST(CpuFallback, LeavesNodesWithoutAHostKernel) {
  const std::string body = R"((float[N] x, int64[1] dim) => (float[M, K] y) <int64[1] rest = {-1}> {
    [odd] odd = test.Odd (dim)
    [shape] shape = Concat <axis = 0> (odd, rest)
    [y] y = Reshape (x, shape)
  })";
  std::shared_ptr<Graph> graph = GraphOf(body);
  graph->FindValue("odd")->set_type(ValueType::Tensor(DType::kInt64, Shape{1}));
  graph->FindValue("shape")->set_type(ValueType::Tensor(DType::kInt64, Shape{2}));
  CountingDevice both({});
  // A device with the op in front of a host without it.
  CountingDevice device({.more = [](KernelRegistry& registry) {
    registry.Add({.op_type = "Odd", .domain = "test", .create = [](KernelInfo& info) {
                    info.SetOutput(0, DType::kInt64, info.InputShape(0));
                    info.SetCompute([](KernelContext& context) {
                      *context.Output<int64_t>(0) = *context.Input<int64_t>(0) | 1;
                    });
                    return Status();
                  }});
  }});
  const ProviderList providers = {device.providers()[0], both.providers()[1]};
  Model model;
  model.graph = graph;
  auto report = std::make_shared<CpuFallbackReport>();
  ASSERT_TRUE(RunPasses({MakeCpuFallbackPass(providers, {.report = report})}, model).ok());
  std::set<std::string> on_host;
  CollectPinned(*graph, &on_host);
  EXPECT_THAT(on_host, ElementsAre("shape"));
  EXPECT_THAT(
      report->ToString(),
      HasSubstr("stays odd: copied to the host: [test::Odd 'odd'] has no kernel on the host"));
}

// A large integer input with a small one.
TEST(CpuFallback, LeavesLargeIntegersOnTheDevice) {
  const DeviceRun on =
      RunChecked(R"((int64[100] ids, int64[1] dim) => (int64[100] y) {
    [add] sum = Add (ids, dim)
    [y] y = Mul (sum, dim)
  })",
                 {Ints(Shape{100}, std::vector<int64_t>(100, 3)), Ints(Shape{1}, {2})},
                 {.device_inputs = {"ids"}});
  EXPECT_THAT(on.on_host, IsEmpty());
  EXPECT_EQ(on.counts.kernels, 2u);
}

// However small they are. What is made of them is copied once, as without the pass; the rest of the
// chain is on the host.
TEST(CpuFallback, LeavesFloatingValuesOnTheDevice) {
  const DeviceRun on = RunChecked(R"((float[1] x, float[1] v) => (float[M] y) <int64[1] one = {1}> {
    [square] s = Mul (x, x)
    [cast] n = Cast <to = 7> (s)
    [next] m = Add (n, one)
    [y] y = Expand (v, m)
  })",
                                  {Floats(Shape{1}, {2}), Ramp(Shape{1})});
  EXPECT_THAT(on.on_host, ElementsAre("next"));
  EXPECT_EQ(on.counts.copies_to_host, 1u);
}

// Small values, but the data of the device decides on them: found there, copied once, not computed
// on the host.
TEST(CpuFallback, LeavesWhatDependsOnDataOnTheDevice) {
  const RuntimeValue x = Floats(Shape{4}, {0, 3, 0, 2});
  const struct {
    const char* nodes;
    std::set<std::string> on_host;
  } kCases[] = {
      {"[found] f = NonZero (x)  [count] s = Shape (f)  y = ConstantOfShape (s)", {}},
      {"[found] f = ArgMax <axis = 0> (x)  y = ConstantOfShape (f)", {}},
      {"[most] m = ReduceMax <keepdims = 1> (x)  [found] f = Cast <to = 7> (m)  y = "
       "ConstantOfShape (f)",
       {}},
      {"[top] v, f = TopK (x, one)  y = ConstantOfShape (f)", {}},
      {"[top] v, f = TopK (x, one)  [next] n = Add (f, one)  y = ConstantOfShape (n)", {"next"}},
  };
  for (const auto& row : kCases) {
    SCOPED_TRACE(row.nodes);
    const DeviceRun on = RunChecked(
        std::string("(float[4] x) => (float[M] y) <int64[1] one = {1}> { ") + row.nodes + " }",
        {x});
    EXPECT_EQ(on.on_host, row.on_host);
    EXPECT_LE(on.counts.copies_to_host, 1u);
  }
}

// A row of a large table of floats chosen by a small index.
TEST(CpuFallback, LeavesALookUpInALargeTableOnTheDevice) {
  std::string table;
  for (int i = 0; i < 300; ++i) table += (i > 0 ? ", " : "") + std::to_string(i % 7);
  const DeviceRun on = RunChecked(
      R"((int64[1] at, float[1] v) => (float[M] y) <float[300] table = {)" + table + R"(}> {
    [row] f = Gather (table, at)
    [cast] n = Cast <to = 7> (f)
    [y] y = Expand (v, n)
  })",
      {Ints(Shape{1}, {5}), Ramp(Shape{1})});
  EXPECT_THAT(on.on_host, IsEmpty());
  EXPECT_EQ(on.counts.copies_to_host, 1u);
}

// --- every op that takes shapes ---

// The chain is n = dim + 1 - 1.
TEST(CpuFallback, ReachesEveryShapeInput) {
  const struct {
    const char* node;  // reads x [2, 3], n [1] (its value 2) or ns [] (the same as a scalar)
    const char* type;  // of y
  } kCases[] = {
      {"y = Expand (row, n)", "float[A]"},
      {"[join] to = Concat <axis = 0> (n, three)  y = Reshape (x, to)", "float[A, B]"},
      {"[join] to = Concat <axis = 0> (n, rest)  y = Reshape (x, to)", "float[A, B]"},
      {"y = Range (zero, ns, ones)", "int64[A]"},
      {"y = ConstantOfShape (n)", "float[A]"},
      {"y = Unsqueeze (x, n)", "float[A, B, C]"},
      {"[down] m = Sub (n, two)  y = Unsqueeze (x, m)", "float[A, B, C]"},
      {"[down] m = Sub (n, two)  [u] u = Unsqueeze (x, m)  y = Squeeze (u, m)", "float[A, B]"},
      {"[join] to = Concat <axis = 0> (n, one)  y = Tile (x, to)", "float[A, B]"},
      {"y = Slice (x, one, n)", "float[A, B]"},
      {"[down] m = Sub (n, two)  y = Slice (x, m, n, one)", "float[A, B]"},
      {"[down] m = Sub (n, one)  y = Slice (x, m, n, m, m)", "float[A, B]"},
      {"[join] p = Concat <axis = 0> (n, one, one, n)  y = Pad (x, p)", "float[A, B]"},
      {"[down] m = Sub (n, one)  [join] s = Concat <axis = 0> (m, n)  y, z = Split <axis = 1> (x, "
       "s)",
       "float[A, B]"},
      {"y, z = TopK (x, n)", "float[A, B]"},
      {"[down] m = Sub (n, one)  y = ReduceSum (x, m)", "float[A, B]"},
      {"[down] m = Sub (n, one)  y = ReduceMax (x, m)", "float[A, B]"},
      {"[down] m = Sub (ns, ones)  y = CumSum (x, m)", "float[A, B]"},
      {"[join] to = Concat <axis = 0> (n, n)  y = CenterCropPad (x, to)", "float[A, B]"},
      {"[join] to = Concat <axis = 0> (one, one, n, three)  [four] f = Unsqueeze (x, zero_one)  "
       "y = Resize <mode = \"nearest\"> (f, , , to)",
       "float[A, B, C, D]"},
      {"[i] i = ArgMax <axis = 1, keepdims = 0> (x)  [up] d = Add (ns, ones)  y = OneHot (i, d, "
       "values)",
       "float[A, B]"},
      {"y = Trilu (x, ns)", "float[A, B]"},
  };
  const Values feeds = {Ramp(Shape{2, 3}), Ints(Shape{1}, {2}), Ints(Shape{}, {2}),
                        Floats(Shape{1}, {1})};
  for (const auto& row : kCases) {
    SCOPED_TRACE(row.node);
    const DeviceRun on = RunChecked(
        std::string("(float[2, 3] x, int64[1] dim, int64 dims, float[1] row) => (") + row.type +
            R"( y) <int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] rest = {-1}, int64 ones = {1},
            int64 zero = {0}, int64[2] zero_one = {0, 1}, float[2] values = {0, 1}> {
          [add] a = Add (dim, one)  [sub] n = Sub (a, one)  [adds] as = Add (dims, ones)  [subs] ns = Sub (as, ones) )" +
            row.node + " }",
        feeds);
    EXPECT_EQ(on.counts.copies_to_host, 0u) << on.report.ToString();
    EXPECT_EQ(on.counts.synchronisations, 0u);
  }
}

// Through nodes that read some input on the host themselves.
TEST(CpuFallback, GoesThroughNodesWithHostInputs) {
  const DeviceRun on = RunChecked(R"((float[N] x, int64 dim) => (float[A, B] y)
      <int64[1] zero = {0}, int64[1] two = {2}, int64[2] pads = {0, 1}, int64 fill = {3}> {
    [unsqueeze] u = Unsqueeze (dim, zero)
    [pad] p = Pad (u, pads, fill)
    [slice] s = Slice (p, zero, two)
    [y] y = Reshape (x, s)
  })",
                                  {Ramp(Shape{6}), Ints(Shape{}, {2})});
  EXPECT_THAT(on.on_host, ElementsAre("pad", "slice", "unsqueeze"));
  EXPECT_EQ(on.counts.copies_to_host, 0u);
}

// Under the semantics of every opset in which the input is a shape.
TEST(CpuFallback, ReachesShapesOfAllOpsets) {
  const struct {
    const char* node;
    std::vector<int> opsets;
  } kCases[] = {
      {"y = Reshape (x, to)", {5, 13, 14, 19, 21, 22, 23, 24, 25}},
      {"y = Expand (row, to)", {8, 13, 23, 25}},
      {"y = ConstantOfShape (to)", {9, 20, 21, 23, 24, 25}},
      {"y = Slice (x, one, to)", {10, 11, 13, 23}},
      {"y = Tile (x, to)", {6, 13, 23}},
  };
  for (const auto& row : kCases) {
    for (const int opset : row.opsets) {
      SCOPED_TRACE(row.node + (" at opset " + std::to_string(opset)));
      auto model = ParseModelText("<ir_version: 8, opset_import: [\"\" : " + std::to_string(opset) +
                                  "]> g " + R"(
          (float[6] x, int64[1] dim, float[1] row) => (float[M] y) <int64[1] one = {1}> {
            [add] a = Add (dim, one)  [sub] to = Sub (a, one) )" +
                                  row.node + " }");
      ASSERT_TRUE(model.ok()) << model.status().ToString();
      const Values feeds = {Ramp(Shape{6}), Ints(Shape{1}, {6}), Floats(Shape{1}, {1})};
      const DeviceRun on = RunOnDevice(model->graph, feeds);
      EXPECT_THAT(on.on_host, ElementsAre("add", "sub"));
      EXPECT_EQ(on.counts.copies_to_host, 0u);
    }
  }
}

// --- outputs of both kinds, outputs of the graph ---

// An attention that hands its random seed on: the seed is on the host by definition, the node is
// not.
TEST(CpuFallback, LeavesMixedNodesAndTakesTheirHostOutputs) {
  const auto mixed = [](KernelRegistry& registry) {
    registry.Add(
        {.op_type = "Mixed", .domain = "test", .host_outputs = {1}, .create = [](KernelInfo& info) {
           info.SetOutput(0, DType::kFloat32, info.InputShape(0));
           info.SetOutput(1, DType::kInt64, Shape{1});
           info.SetCompute([count = info.InputShape(0).elements()](KernelContext& context) {
             for (int64_t i = 0; i < count; ++i)
               context.Output<float>(0)[i] = context.Input<float>(0)[i];
             *context.Output<int64_t>(1) = 2;
           });
           return Status();
         }});
  };
  CountingDevice device({.more = mixed, .close_pages = true});
  Model model;
  model.graph =
      GraphOf(R"((float[6] x) => (float[A, B] y) <int64[1] one = {1}, int64[1] rest = {-1}> {
    [mixed] h, seed = test.Mixed (x)
    [add] a = Add (seed, one)
    [shape] shape = Concat <axis = 0> (a, rest)
    [y] y = Reshape (h, shape)
  })");
  model.graph->FindValue("seed")->set_type(ValueType::Tensor(DType::kInt64, Shape{1}));
  model.graph->FindValue("a")->set_type(ValueType::Tensor(DType::kInt64, Shape{1}));
  model.graph->FindValue("shape")->set_type(ValueType::Tensor(DType::kInt64, Shape{2}));
  ASSERT_TRUE(RunPasses({MakeCpuFallbackPass(device.providers())}, model).ok());
  std::set<std::string> on_host;
  CollectPinned(*model.graph, &on_host);
  EXPECT_THAT(on_host, ElementsAre("add", "shape"));
  const Tensor x = Moved(Ramp(Shape{6}).tensor(), *device.providers()[0], CopyKind::kToDevice);
  auto plan = PlanOf(model.graph, {x}, {.fetch_devices = {std::nullopt}}, device.providers());
  device.Reset();
  const Values results = RunPlan(plan, {x});
  EXPECT_EQ(results[0].tensor().shape(), (Shape{3, 2}));
  EXPECT_EQ(device.counts().copies_to_host, 0u);
  EXPECT_EQ(device.counts().synchronisations, 0u);
}

// Nobody reads the shape but the caller.
TEST(CpuFallback, TakesAShapeThatIsAnOutput) {
  const DeviceRun on = RunChecked(R"((int64[1] dim) => (int64[2] shape) <int64[1] one = {1}> {
    [add] a = Add (dim, one)
    [join] shape = Concat <axis = 0> (a, dim)
  })",
                                  {Ints(Shape{1}, {2})}, {.fetch_on_host = true});
  EXPECT_THAT(on.on_host, ElementsAre("add", "join"));
  EXPECT_EQ(on.counts.copies_to_device + on.counts.copies_to_host, 0u);
}

// An unfolded chain from Shape, which is on the host by definition.
TEST(CpuFallback, BeginsAtShape) {
  const DeviceRun on =
      RunChecked(R"((float[2, 3] x) => (float[A, B] y) <int64[1] zero = {0}, int64[1] rest = {-1}> {
    [dims] s = Shape (x)
    [first] d = Gather (s, zero)
    [join] to = Concat <axis = 0> (rest, d)
    [y] y = Reshape (x, to)
  })",
                 {Ramp(Shape{2, 3})}, {.fold = false});
  EXPECT_THAT(on.on_host, ElementsAre("first", "join"));
  EXPECT_EQ(on.counts.copies_to_host, 0u);
  EXPECT_EQ(on.counts.copies_to_device, 0u);
}

}  // namespace
}  // namespace caesura::testing
