// SPDX-License-Identifier: Apache-2.0
// A step on two streams, and the ways to get its order wrong.
#include <thread>
#include "standin_device.h"

namespace standin_test {
namespace {

using ::testing::HasSubstr;

enum class Bug {
  kNone,
  kNoEventWait,
  kHostReadsEarly,
  kHostWritesEarly,
  kReusedEarly,
  kFreedEarly
};

constexpr unsigned kCount = 64;
constexpr std::size_t kBytes = kCount * sizeof(float);

// Two inputs are copied on one stream, added on another, and the sum is copied back.
void Step(Bug bug, std::uint64_t seed) {
  static const Program program = Compile(KernelText("add.cuh"));
  Device device(seed);
  const CUfunction add = device.Load(program, "add");
  const CUstream copies = device.Stream(), computes = device.Stream();
  const CUevent copied = device.Event(), computed = device.Event();
  float* const input = device.Pinned(kCount);
  float* const output = device.Pinned(kCount);
  for (unsigned i = 0; i < kCount; ++i) input[i] = static_cast<float>(i);
  const CUdeviceptr y = device.Memory(kBytes);
  CUdeviceptr x = 0;
  ASSERT_CUDA(cuMemAllocAsync(&x, kBytes, copies));
  ASSERT_CUDA(cuMemcpyHtoDAsync(x, input, kBytes, copies));
  ASSERT_CUDA(cuEventRecord(copied, copies));
  if (bug == Bug::kHostWritesEarly) input[0] = 7;
  if (bug != Bug::kNoEventWait) {
    ASSERT_CUDA(cuStreamWaitEvent(computes, copied, 0));
  }
  ASSERT_CUDA(Launch(add, 2, 32, 0, computes, x, x, y, static_cast<long long>(kCount)));
  ASSERT_CUDA(cuMemcpyDtoHAsync(output, y, kBytes, computes));
  ASSERT_CUDA(cuEventRecord(computed, computes));
  if (bug != Bug::kReusedEarly && bug != Bug::kFreedEarly) {
    ASSERT_CUDA(cuStreamWaitEvent(copies, computed, 0));
  }
  if (bug == Bug::kFreedEarly) {
    ASSERT_CUDA(cuMemFreeAsync(x, copies));
  } else {
    ASSERT_CUDA(cuMemcpyHtoDAsync(x, input, kBytes, copies));  // the next step's
  }
  float first = -1;
  if (bug == Bug::kHostReadsEarly) first = output[1];
  const CUresult done = cuStreamSynchronize(computes);
  if (bug == Bug::kNone || bug == Bug::kHostReadsEarly) {
    ASSERT_EQ(done, CUDA_SUCCESS);
  }
  if (bug != Bug::kHostReadsEarly && done == CUDA_SUCCESS) first = output[1];
  cuCtxSynchronize();
  if (bug == Bug::kNone) {
    EXPECT_EQ(first, 2.0f);
  }
}

class OrderTest : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, OrderTest, ::testing::Range<std::uint64_t>(0, kSeeds));

TEST_P(OrderTest, RightStepGivesNoReport) {
  Step(Bug::kNone, GetParam());
  EXPECT_EQ(Reports(), "");
}

TEST_P(OrderTest, NamesRemovedEventWait) {
  Step(Bug::kNoEventWait, GetParam());
  EXPECT_THAT(Reports(),
              ::testing::ContainsRegex("not ordered: (kernel add on stream 2 reads|copy from host "
                                       "to device on stream 1 writes) byte 0 of device memory"));
}

TEST_P(OrderTest, NamesEarlyReadOfTheHost) {
  Step(Bug::kHostReadsEarly, GetParam());
  EXPECT_THAT(Reports(), HasSubstr("not ordered: the host reads pinned memory"));
  EXPECT_THAT(Reports(), HasSubstr("which copy from device to host on stream 2 writes"));
}

TEST_P(OrderTest, NamesEarlyWriteOfTheHost) {
  Step(Bug::kHostWritesEarly, GetParam());
  EXPECT_THAT(Reports(), HasSubstr("not ordered: the host writes pinned memory"));
  EXPECT_THAT(Reports(), HasSubstr("which copy from host to device on stream 1 reads"));
}

TEST_P(OrderTest, NamesBufferThatIsReusedTooEarly) {
  Step(Bug::kReusedEarly, GetParam());
  EXPECT_THAT(Reports(),
              ::testing::ContainsRegex("not ordered: (kernel add on stream 2 reads|copy from host "
                                       "to device on stream 1 writes) byte 0 of device memory"));
}

TEST_P(OrderTest, NamesBufferThatIsFreedTooEarly) {
  Step(Bug::kFreedEarly, GetParam());
  EXPECT_THAT(Reports(), ::testing::ContainsRegex("not ordered: (kernel add on stream 2 reads|free "
                                                  "on stream 1 writes)|used after it was freed"));
}

// Later operations know all that the host did before it wrote the value.
TEST_P(OrderTest, AStreamWaitsForAValueOfTheHost) {
  Device device(GetParam());
  const CUstream stream = device.Stream();
  auto* const signal = reinterpret_cast<unsigned*>(device.Pinned(1));
  float *const input = device.Pinned(kCount), *const output = device.Pinned(kCount);
  *signal = 6;
  input[0] = 5;
  const CUdeviceptr x = device.Memory(kBytes);
  ASSERT_CUDA(cuMemsetD32Async(x, 1, kCount, stream));
  ASSERT_CUDA(cuStreamWaitValue32(stream, reinterpret_cast<CUdeviceptr>(signal), 7,
                                  CU_STREAM_WAIT_VALUE_GEQ));
  ASSERT_CUDA(cuMemcpyHtoDAsync(x, input, kBytes, stream));
  ASSERT_CUDA(cuMemcpyDtoHAsync(output, x, kBytes, stream));
  __atomic_store_n(signal, 7u, __ATOMIC_RELEASE);
  ASSERT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(output[0], 5.0f);
  EXPECT_EQ(Reports(), "");
}

TEST(SignalTest, NamesAValueThatTheHostDoesNotWrite) {
  for (const std::uint64_t seed : {0, 1}) {
    Device device(seed);
    const CUstream stream = device.Stream();
    auto* const signal = reinterpret_cast<unsigned*>(device.Pinned(1));
    *signal = 0;
    ASSERT_CUDA(cuStreamWaitValue32(stream, reinterpret_cast<CUdeviceptr>(signal), 1,
                                    CU_STREAM_WAIT_VALUE_GEQ));
    cuStreamSynchronize(stream);
    EXPECT_THAT(Reports(), HasSubstr("deadlock: a stream waits for a value"));
  }
}

// The legacy stream and blocking ones wait for each other; others do not.
TEST_P(OrderTest, LegacyStreamWaitsForBlockingOnes) {
  for (const bool blocking : {true, false}) {
    Device device(GetParam());
    CUstream stream = nullptr;
    ASSERT_CUDA(cuStreamCreate(&stream, blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
    const CUdeviceptr x = device.Memory(kBytes);
    ASSERT_CUDA(cuMemsetD32Async(x, 1, kCount, stream));
    ASSERT_CUDA(cuMemsetD32Async(x, 2, kCount, nullptr));
    ASSERT_CUDA(cuMemsetD32Async(x, 3, kCount, stream));
    std::vector<int> host(kCount);
    ASSERT_CUDA(cuMemcpyDtoHAsync(host.data(), x, kBytes, stream));
    cuCtxSynchronize();
    if (blocking) {
      EXPECT_EQ(Reports(), "");
      EXPECT_EQ(host, std::vector<int>(kCount, 3));
    } else {
      EXPECT_THAT(Reports(), HasSubstr("not ordered: fill"));
    }
  }
}

TEST_P(OrderTest, ThreadsOfTheHostHaveStreamsOfTheirOwn) {
  static const Program program = Compile(KernelText("add.cuh"));
  Device device(GetParam());
  const CUfunction add = device.Load(program, "add");
  CUcontext context = nullptr;
  ASSERT_CUDA(cuCtxGetCurrent(&context));
  const auto work = [&](float first) {
    ASSERT_CUDA(cuCtxSetCurrent(context));
    const CUstream stream = device.Stream();
    const CUdeviceptr x = device.Memory(kBytes);
    std::vector<float> host(kCount, first);
    for (int i = 0; i < 3; ++i) {
      ASSERT_CUDA(cuMemcpyHtoDAsync(x, host.data(), kBytes, stream));
      ASSERT_CUDA(Launch(add, 2, 32, 0, stream, x, x, x, static_cast<long long>(kCount)));
      ASSERT_CUDA(cuLaunchHostFunc(stream, [](void* at) { ++*static_cast<float*>(at); }, &first));
      ASSERT_CUDA(cuMemcpyDtoHAsync(host.data(), x, kBytes, stream));
      ASSERT_CUDA(cuStreamSynchronize(stream));
    }
    EXPECT_EQ(host[5], (first - 3) * 8);
  };
  std::thread other(work, 10.0f);
  work(1.0f);
  other.join();
  EXPECT_EQ(Reports(), "");
}

TEST_P(OrderTest, PartsOfOneAllocationAreApart) {
  static const Program program = Compile(KernelText("add.cuh"));
  Device device(GetParam());
  const CUfunction add = device.Load(program, "add");
  const CUstream a = device.Stream(), b = device.Stream();
  const CUdeviceptr arena = device.Memory(4 * kBytes);
  ASSERT_CUDA(cuMemsetD32(arena, 0, 4 * kCount));
  ASSERT_CUDA(cuCtxSynchronize());
  const long long n = kCount;
  ASSERT_CUDA(Launch(add, 2, 32, 0, a, arena, arena, arena + kBytes, n));
  ASSERT_CUDA(Launch(add, 2, 32, 0, b, arena, arena, arena + 2 * kBytes, n));
  ASSERT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(Reports(), "");
  ASSERT_CUDA(Launch(add, 2, 32, 0, a, arena, arena, arena + kBytes, n));
  ASSERT_CUDA(Launch(add, 2, 32, 0, b, arena, arena, arena + 2 * kBytes - 4, n));
  ASSERT_CUDA(cuCtxSynchronize());
  EXPECT_THAT(Reports(), HasSubstr("writes byte 508 of device memory"));
}

}  // namespace
}  // namespace standin_test
