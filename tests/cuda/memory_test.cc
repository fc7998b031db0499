// SPDX-License-Identifier: Apache-2.0
// Memory of the stand-in device: bounds, lifetimes, limits, closed pages; addresses of functions.
#include <cmath>
#include "standin_device.h"

namespace standin_test {
namespace {

using ::testing::HasSubstr;

TEST(MemoryDeathTest, HostMustNotTouchTheDevice) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Device device(1);
        const CUdeviceptr x = device.Memory(256);
        reinterpret_cast<volatile char*>(x)[5] = 1;
      },
      "the host writes memory of the device: byte 5 of device memory 1");
}

TEST(MemoryTest, CopyOutOfBoundsIsNamed) {
  Device device(1);
  const CUdeviceptr x = device.Memory(256);
  std::vector<char> host(300);
  EXPECT_EQ(cuMemcpyHtoD(x, host.data(), 260), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(Reports(),
              HasSubstr("out of bounds: copy of 260 bytes writes to byte 260 of device memory 1"));
  standin_clear_reports();
  EXPECT_EQ(cuMemsetD8(x + 4096 * 2, 0, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(Reports(), HasSubstr("fill writes beyond any allocation"));
}

TEST(MemoryTest, UseAfterFreeIsNamed) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Device device(seed);
    const CUstream stream = device.Stream();
    CUdeviceptr x = 0;
    ASSERT_CUDA(cuMemAllocAsync(&x, 64, stream));
    ASSERT_CUDA(cuMemFreeAsync(x, stream));
    EXPECT_CUDA(cuMemsetD8Async(x, 0, 64, stream));
    EXPECT_NE(cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_THAT(Reports(),
                HasSubstr("used after it was freed: fill on stream 1 writes device memory 1"));
  }
}

TEST(MemoryTest, FreeingTwiceIsNamed) {
  Device device(1);
  const CUdeviceptr x = device.Memory(256);
  EXPECT_CUDA(cuMemFree(x));
  EXPECT_EQ(cuMemFree(x), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(Reports(), HasSubstr("freed twice: device memory 1"));
}

TEST(MemoryTest, LimitHolds) {
  Device device(1);
  standin_set_memory(1000);
  CUdeviceptr a = 0, b = 0;
  std::size_t free = 0, total = 0;
  ASSERT_CUDA(cuMemAllocAsync(&a, 600, nullptr));
  EXPECT_EQ(cuMemAlloc(&b, 600), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_CUDA(cuMemGetInfo(&free, &total));
  EXPECT_EQ(free, 400u);
  EXPECT_EQ(total, 1000u);
  ASSERT_CUDA(cuMemFreeAsync(a, nullptr));
  EXPECT_CUDA(cuMemAlloc(&b, 600)) << "the free that waits in a stream is done first";
  EXPECT_EQ(standin_allocated(), 600u);
  EXPECT_EQ(standin_most_allocated(), 600u);
}

TEST(MemoryTest, ManyAllocationsLeaveNothingBehind) {
  Device device(1);
  for (int i = 0; i < 5000; ++i) {
    CUdeviceptr x = 0;
    ASSERT_CUDA(cuMemAllocAsync(&x, 64, nullptr));
    ASSERT_CUDA(cuMemsetD8Async(x, 0, 64, nullptr));
    ASSERT_CUDA(cuMemFreeAsync(x, nullptr));
    if (i % 100 == 0) {
      ASSERT_CUDA(cuStreamSynchronize(nullptr));
    }
  }
  ASSERT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(standin_allocated(), 0u);
  EXPECT_EQ(Reports(), "");
}

TEST(MemoryTest, NewMemoryIsPoisoned) {
  Device device(1);
  float host = 0;
  EXPECT_CUDA(cuMemcpyDtoH(&host, device.Memory(4), 4));
  EXPECT_TRUE(std::isnan(host));
}

TEST(MemoryTest, PageableSourceMayChangeAtOnce) {
  Device device(1);
  const CUstream stream = device.Stream();
  const CUdeviceptr x = device.Memory(4);
  int host = 5, back = 0;
  ASSERT_CUDA(cuMemcpyHtoDAsync(x, &host, 4, stream));
  host = 6;
  ASSERT_CUDA(cuMemcpyDtoHAsync(&back, x, 4, stream));
  EXPECT_EQ(back, 5);
  EXPECT_EQ(Reports(), "");
}

TEST(DriverTest, NothingWorksBeforeInit) {
  standin_reset(1);
  int count = 0;
  EXPECT_EQ(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
  standin_set_devices(0);
  EXPECT_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

TEST(DriverTest, FunctionsAreFoundByName) {
  Device device(1);
  for (const char* name : {"cuMemAlloc", "cuInit", "cuStreamBeginCapture", "cuGetProcAddress"}) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult status{};
    EXPECT_CUDA(cuGetProcAddress(name, &address, 13000, 0, &status)) << name;
    EXPECT_NE(address, nullptr);
  }
  void* address = nullptr;
  EXPECT_EQ(cuGetProcAddress("cuNoSuchCall", &address, 13000, 0, nullptr), CUDA_ERROR_NOT_FOUND);
  cuGetProcAddress("cuMemAlloc", &address, 13000, 0, nullptr);
  EXPECT_EQ(address, reinterpret_cast<void*>(&cuMemAlloc));  // cuMemAlloc_v2
}

}  // namespace
}  // namespace standin_test
