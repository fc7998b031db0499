// SPDX-License-Identifier: Apache-2.0
// Dropout on the device drops what it drops on the CPU, for each seed and step, and also where its
// launch was captured in an earlier step.
#include <cuda.h>

#include "core/plan/device_constants.h"
#include "core/providers/cpu_provider.h"
#include "core/providers/tensor_copy.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/ops/cuda/kernel_feeds.h"
#include "tests/core/providers/cuda/standin_cuda.h"

namespace caesura::testing {
namespace {

using CudaDropout = StandinCuda;

constexpr char kTwoDropouts[] = R"(
(float[7, 131] x) => (float[7, 131] y, bool[7, 131] mask, float[7, 131] z)
<float ratio = {0.3}, bool training = {1}> {
  y, mask = Dropout (x, ratio, training)
  z = Dropout <seed = 7> (y, ratio, training)
})";

RunOptions Key(uint64_t seed, uint64_t step) {
  RunOptions options;
  options.seed = seed;
  options.step = step;
  return options;
}

TEST_F(CudaDropout, DropsWhatTheCpuDrops) {
  const auto cuda = Provider(), cpu = MakeCpuProvider();
  const auto graph = GraphOf(kTwoDropouts);
  const Values feeds = {Ramp(Shape{7, 131})};
  const auto on_cpu = PlanOf(graph, feeds, {}, {cpu}),
             on_device = PlanOf(graph, feeds, {}, {cuda, cpu});
  for (const uint64_t seed : {uint64_t{0}, uint64_t{5}, uint64_t{0xfedcba9876543210}}) {
    for (const uint64_t step : {uint64_t{0}, uint64_t{1}, uint64_t{0x100000001}})
      EXPECT_TRUE(SameBits(RunPlan(on_device, feeds, Key(seed, step)),
                           RunPlan(on_cpu, feeds, Key(seed, step))))
          << seed << ", " << step;
  }
}

// Each state has a key of its own; a copy of a state has the original's.
TEST_F(CudaDropout, StatesDrawByThemselves) {
  const auto cuda = Provider(), cpu = MakeCpuProvider();
  const auto graph = GraphOf(kTwoDropouts);
  const Values feeds = {Ramp(Shape{7, 131})};
  const auto on_cpu = PlanOf(graph, feeds, {}, {cpu}),
             on_device = PlanOf(graph, feeds, {}, {cuda, cpu});
  ExecutionState first(on_device), second(on_device);
  ASSERT_TRUE(first.Start(feeds, Key(1, 1)).ok());
  ASSERT_TRUE(second.Start(feeds, Key(1, 2)).ok());
  const std::unique_ptr<ExecutionState> copy = first.Clone().value();
  for (auto& [state, step] :
       {std::pair(&second, 2), std::pair(&first, 1), std::pair(copy.get(), 1)}) {
    ASSERT_EQ(PartialExecutor::Run(*state).value(), RunOutcome::kFinished);
    EXPECT_TRUE(SameBits(state->TakeFetches(), RunPlan(on_cpu, feeds, Key(1, step)))) << step;
  }
}

// The launches of one run as a graph of the driver's, which later runs start in their place.
TEST_F(CudaDropout, CapturedLaunchesDrawAnew) {
  SKIP_ON_GPU();
  const auto cuda = Provider(), cpu = MakeCpuProvider();
  const auto graph = GraphOf(kTwoDropouts);
  const Values on_host = {Ramp(Shape{7, 131})};
  const Values feeds = {CopyToDevice(on_host[0].tensor(), *cuda).value()};
  PlanOptions options;
  options.fetch_devices.assign(3, std::nullopt);  // where they are made
  const auto on_device = PlanOf(graph, feeds, options, {cuda, cpu});
  const auto on_cpu = PlanOf(graph, on_host, {}, {cpu});
  Values expected = RunPlan(on_cpu, on_host, Key(3, 1));
  std::vector<Tensor> buffers;
  for (const RuntimeValue& value : expected)
    buffers.push_back(CopyToDevice(value.tensor(), *cuda).value());
  const auto options_of = [&](uint64_t step) {
    RunOptions out = Key(3, step);
    out.fetch_buffers = buffers;
    return out;
  };
  const auto results = [&] {
    Values out;
    for (const Tensor& buffer : buffers) out.push_back(ToHost(buffer, {cuda, cpu}).value());
    return out;
  };
  ExecutionState state(on_device);
  ASSERT_TRUE(Finish(state, feeds, options_of(1)).ok());
  EXPECT_TRUE(SameBits(results(), expected));

  const auto stream = static_cast<CUstream>(cuda->stream());
  CUgraph captured = nullptr;
  CUgraphExec executable = nullptr;
  ASSERT_TRUE(state.Start(feeds, options_of(2)).ok());
  ASSERT_EQ(Call<decltype(cuStreamBeginCapture)>("cuStreamBeginCapture_v2")(
                stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
            CUDA_SUCCESS);
  ASSERT_EQ(PartialExecutor::Run(state).value(), RunOutcome::kFinished);
  ASSERT_EQ(Call<decltype(cuStreamEndCapture)>("cuStreamEndCapture")(stream, &captured),
            CUDA_SUCCESS);
  ASSERT_EQ(Call<decltype(cuGraphInstantiateWithFlags)>("cuGraphInstantiateWithFlags")(&executable,
                                                                                       captured, 0),
            CUDA_SUCCESS);
  for (const uint64_t step : {2, 3, 4}) {
    ASSERT_TRUE(state.Start(feeds, options_of(step)).ok());
    ASSERT_EQ(Call<decltype(cuGraphLaunch)>("cuGraphLaunch")(executable, stream), CUDA_SUCCESS);
    expected = RunPlan(on_cpu, on_host, Key(3, step));
    EXPECT_TRUE(SameBits(results(), expected)) << step;
  }
  EXPECT_EQ(Call<decltype(cuGraphExecDestroy)>("cuGraphExecDestroy")(executable), CUDA_SUCCESS);
  EXPECT_EQ(Call<decltype(cuGraphDestroy)>("cuGraphDestroy")(captured), CUDA_SUCCESS);
}

}  // namespace
}  // namespace caesura::testing
