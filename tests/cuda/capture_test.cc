// SPDX-License-Identifier: Apache-2.0
// Captures, graphs, contexts, planned failures.
#include <functional>
#include <thread>
#include "standin_device.h"

namespace standin_test {
namespace {

using ::testing::HasSubstr;

constexpr unsigned kCount = 64;
constexpr std::size_t kBytes = kCount * sizeof(int);

class CaptureTest : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, CaptureTest, ::testing::Range<std::uint64_t>(0, kSeeds));

// A graph of two branches: x = 1 and y = 2 at once, then z = x.
CUresult CaptureTwoBranches(Device& device, CUstream stream, CUdeviceptr x, CUdeviceptr y,
                            CUdeviceptr z, bool join, CUgraph* graph) {
  const CUstream other = device.Stream();
  const CUevent fork = device.Event(), joined = device.Event();
  EXPECT_CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_CUDA(cuEventRecord(fork, stream));
  EXPECT_CUDA(cuStreamWaitEvent(other, fork, 0));
  EXPECT_CUDA(cuMemsetD32Async(x, 1, kCount, stream));
  EXPECT_CUDA(cuMemsetD32Async(y, 2, kCount, other));
  EXPECT_CUDA(cuEventRecord(joined, other));
  if (join) {
    EXPECT_CUDA(cuStreamWaitEvent(stream, joined, 0));
  }
  EXPECT_CUDA(cuMemcpyDtoDAsync(z, x, kBytes, stream));
  return cuStreamEndCapture(stream, graph);
}

TEST_P(CaptureTest, GraphRunsAgain) {
  Device device(GetParam());
  const CUstream stream = device.Stream();
  const CUdeviceptr x = device.Memory(kBytes), y = device.Memory(kBytes), z = device.Memory(kBytes);
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  ASSERT_CUDA(CaptureTwoBranches(device, stream, x, y, z, true, &graph));
  std::size_t nodes = 0;
  ASSERT_CUDA(cuGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 3u);
  ASSERT_CUDA(cuGraphInstantiate(&executable, graph, 0));
  ASSERT_CUDA(cuGraphDestroy(graph));
  EXPECT_EQ(standin_operations(""), 0u) << "a capture runs nothing";
  std::vector<int> host(kCount);
  for (int i = 0; i < 2; ++i) {
    ASSERT_CUDA(cuMemsetD32Async(z, 9, kCount, stream));
    ASSERT_CUDA(cuMemsetD32Async(y, 9, kCount, stream));
    ASSERT_CUDA(cuGraphLaunch(executable, stream));
    ASSERT_CUDA(cuMemcpyDtoHAsync(host.data(), z, kBytes, stream));
    EXPECT_EQ(host, std::vector<int>(kCount, 1));
    ASSERT_CUDA(cuMemcpyDtoHAsync(host.data(), y, kBytes, stream));
    EXPECT_EQ(host, std::vector<int>(kCount, 2));
  }
  ASSERT_CUDA(cuGraphExecDestroy(executable));
  EXPECT_EQ(Reports(), "");
}

TEST_P(CaptureTest, GraphTakesNewArguments) {
  Device device(GetParam());
  const CUstream stream = device.Stream();
  const CUdeviceptr x = device.Memory(kBytes);
  const auto capture = [&](int times, unsigned value) {
    CUgraph graph = nullptr;
    EXPECT_CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < times; ++i) EXPECT_CUDA(cuMemsetD32Async(x, value, kCount, stream));
    EXPECT_CUDA(cuStreamEndCapture(stream, &graph));
    return graph;
  };
  CUgraphExec executable = nullptr;
  CUgraphExecUpdateResultInfo info{};
  ASSERT_CUDA(cuGraphInstantiate(&executable, capture(1, 5), 0));
  ASSERT_CUDA(cuGraphExecUpdate(executable, capture(1, 6), &info));
  EXPECT_EQ(cuGraphExecUpdate(executable, capture(2, 7), &info),
            CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  std::vector<int> host(kCount);
  ASSERT_CUDA(cuGraphLaunch(executable, stream));
  ASSERT_CUDA(cuMemcpyDtoHAsync(host.data(), x, kBytes, stream));
  EXPECT_EQ(host, std::vector<int>(kCount, 6));
  EXPECT_EQ(Reports(), "");
}

TEST_P(CaptureTest, NamesBranchThatIsNotJoined) {
  Device device(GetParam());
  const CUdeviceptr x = device.Memory(kBytes), y = device.Memory(kBytes), z = device.Memory(kBytes);
  CUgraph graph = nullptr;
  EXPECT_EQ(CaptureTwoBranches(device, device.Stream(), x, y, z, false, &graph),
            CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_THAT(Reports(), HasSubstr("the origin does not wait for stream 2"));
}

TEST_P(CaptureTest, NamesForbiddenCall) {
  struct Forbidden {
    const char* name;
    std::function<CUresult(CUstream, CUevent, CUdeviceptr)> call;
  };
  const Forbidden all[] = {
      {"cuStreamSynchronize",
       [](CUstream s, CUevent, CUdeviceptr) { return cuStreamSynchronize(s); }},
      {"cuStreamQuery", [](CUstream s, CUevent, CUdeviceptr) { return cuStreamQuery(s); }},
      {"cuCtxSynchronize", [](CUstream, CUevent, CUdeviceptr) { return cuCtxSynchronize(); }},
      {"cuEventSynchronize",
       [](CUstream, CUevent e, CUdeviceptr) { return cuEventSynchronize(e); }},
      {"cuMemFree", [](CUstream, CUevent, CUdeviceptr x) { return cuMemFree(x); }},
      {"cuMemAlloc", [](CUstream, CUevent, CUdeviceptr x) { return cuMemAlloc(&x, 4); }},
      {"not recorded in the capture", [](CUstream s, CUevent, CUdeviceptr) {
         CUevent outside = nullptr;
         EXPECT_CUDA(cuEventCreate(&outside, CU_EVENT_DISABLE_TIMING));
         return cuStreamWaitEvent(s, outside, 0);
       }}};
  for (const Forbidden& forbidden : all) {
    Device device(GetParam());
    const CUstream stream = device.Stream();
    const CUevent event = device.Event();
    const CUdeviceptr x = device.Memory(kBytes);
    CUgraph graph = nullptr;
    ASSERT_CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ASSERT_CUDA(cuMemsetD32Async(x, 1, kCount, stream));
    ASSERT_CUDA(cuEventRecord(event, stream));
    EXPECT_NE(forbidden.call(stream, event, x), CUDA_SUCCESS) << forbidden.name;
    EXPECT_EQ(cuMemsetD32Async(x, 1, kCount, stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(graph, nullptr);
    EXPECT_THAT(Reports(), HasSubstr("forbidden in a capture: "));
    EXPECT_THAT(Reports(), HasSubstr(forbidden.name));
    EXPECT_CUDA(cuMemsetD32Async(x, 1, kCount, stream));
    EXPECT_CUDA(cuStreamSynchronize(stream));
  }
}

TEST_P(CaptureTest, NamesContextThatIsNotCurrent) {
  Device device(GetParam());
  CUcontext context = nullptr;
  ASSERT_CUDA(cuCtxGetCurrent(&context));
  const CUstream stream = device.Stream();
  const CUdeviceptr x = device.Memory(kBytes);
  CUresult without = CUDA_SUCCESS, with = CUDA_ERROR_UNKNOWN;
  std::thread([&] {
    without = cuMemsetD32Async(x, 1, kCount, stream);
    EXPECT_CUDA(cuCtxSetCurrent(context));
    with = cuMemsetD32Async(x, 1, kCount, stream);
  }).join();
  EXPECT_EQ(without, CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(with, CUDA_SUCCESS);
  EXPECT_EQ(Reports(),
            "no context: cuMemsetD32Async is called on a thread where no context is current\n");
}

TEST(FailureTest, PlannedOnesComeOnce) {
  Device device(1);
  CUdeviceptr at = 0;
  standin_fail("cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_CUDA(cuMemAlloc(&at, 4));
  EXPECT_EQ(cuMemAlloc(&at, 4), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_CUDA(cuMemAlloc(&at, 4));
  EXPECT_EQ(standin_calls("cuMemAlloc"), 3u);
  standin_fail_operation("fill", 2, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_CUDA(cuMemsetD32(at, 0, 1));
  EXPECT_CUDA(cuMemsetD32(at, 0, 1));
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED) << "sticky";
  EXPECT_CUDA(cuDevicePrimaryCtxReset(0));
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(standin_operations("fill"), 2u);
}

TEST(HostFunctionTest, RunsInOrderAndMustNotCallTheDriver) {
  Device device(3);
  const CUstream stream = device.Stream();
  const CUdeviceptr x = device.Memory(kBytes);
  CUresult inside = CUDA_SUCCESS;
  ASSERT_CUDA(cuLaunchHostFunc(
      stream,
      [](void* result) {
        std::size_t a = 0, b = 0;
        *static_cast<CUresult*>(result) = cuMemGetInfo(&a, &b);
      },
      &inside));
  ASSERT_CUDA(cuMemsetD32Async(x, 0, kCount, stream));
  EXPECT_EQ(inside, CUDA_SUCCESS) << "nothing runs before it must";
  ASSERT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(inside, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_THAT(Reports(), HasSubstr("forbidden call: cuMemGetInfo in a host function"));
}

}  // namespace
}  // namespace standin_test
