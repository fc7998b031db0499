// SPDX-License-Identifier: Apache-2.0
// The emulator: kernels with a fault, in every seed, and the same ones without.
#include <cmath>
#include "standin_device.h"

namespace standin_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class KernelTest : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, KernelTest, ::testing::Range<std::uint64_t>(0, kSeeds));

// Runs a kernel of one pointer on 128 floats; what the device says at the end.
CUresult RunOn128(const std::string& text, std::uint64_t seed, unsigned block, unsigned grid = 1,
                  unsigned shared = 0) {
  const Program program = Compile(text);
  if (program.image.empty()) return CUDA_ERROR_INVALID_IMAGE;
  Device device(seed);
  const CUfunction function = device.Load(program, "f");
  const CUdeviceptr x = device.Memory(128 * sizeof(float));
  EXPECT_CUDA(cuMemsetD32(x, 0, 128));
  EXPECT_CUDA(Launch(function, grid, block, shared, nullptr, x));
  return cuCtxSynchronize();
}

// The greatest distance from a softmax in double.
double SoftmaxError(std::uint64_t seed, int order, const std::vector<std::string>& options) {
  constexpr int kRows = 5, kColumns = 300, kThreads = 128;
  const Program program = Compile(KernelText("softmax.cuh"), {"softmax<float, 128>"}, options);
  Device device(seed);
  standin_set_lane_order(order);
  const CUfunction softmax = device.Load(program, program.lowered[0]);
  std::vector<float> x(kRows * kColumns), y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i) * 0.37f) * 3;
  const std::size_t bytes = x.size() * sizeof(float);
  const CUdeviceptr from = device.Memory(bytes), to = device.Memory(bytes);
  EXPECT_CUDA(cuMemcpyHtoD(from, x.data(), bytes));
  EXPECT_CUDA(Launch(softmax, kRows, kThreads, 0, nullptr, from, to, kColumns));
  EXPECT_CUDA(cuMemcpyDtoH(y.data(), to, bytes));
  double worst = 0;
  for (int row = 0; row < kRows; ++row) {
    double sum = 0;
    for (int i = 0; i < kColumns; ++i) sum += std::exp(double{x[row * kColumns + i]});
    for (int i = 0; i < kColumns; ++i) {
      const int at = row * kColumns + i;
      const double error = std::abs(y[at] - std::exp(double{x[at]}) / sum);
      worst = std::isnan(error) ? 1 : std::max(worst, error);
    }
  }
  return worst;
}

TEST_P(KernelTest, BlockReductionIsRight) {
  EXPECT_LT(SoftmaxError(GetParam(), STANDIN_LANES_DRAWN, {}), 1e-7);
  EXPECT_EQ(Reports(), "");
}

TEST_P(KernelTest, NamesRemovedBarrierInEveryOrder) {
  const int order = 1 + static_cast<int>(GetParam() % 5);
  SoftmaxError(GetParam(), order, {"-DBUG_NO_BARRIER"});
  EXPECT_THAT(Reports(), HasSubstr("kernel softmax<float, 128>"));
  EXPECT_THAT(Reports(), HasSubstr("a barrier is missing: it writes shared memory"));
  EXPECT_THAT(Reports(), HasSubstr("at test.cu:"));
}

// A warp that runs ahead makes the missing barrier visible in the result.
TEST(LaneOrderTest, OneWarpAheadShowsMissingBarrierInTheResult) {
  EXPECT_LT(SoftmaxError(0, STANDIN_LANES_FORWARD, {"-DBUG_NO_BARRIER"}), 1e-7);
  EXPECT_GT(SoftmaxError(0, STANDIN_LANES_FIRST_WARP_AHEAD, {"-DBUG_NO_BARRIER"}), 1e-3);
}

TEST_P(KernelTest, NamesMissingBarrierWithinWarp) {
  const std::string text = R"(
extern "C" __global__ void f(float* x) {
  __shared__ float part[32];
  part[threadIdx.x] = threadIdx.x;
  BARRIER;
  x[threadIdx.x] = part[31 - threadIdx.x];
})";
  EXPECT_CUDA(RunOn128("#define BARRIER __syncwarp()" + text, GetParam(), 32));
  EXPECT_EQ(Reports(), "");
  const std::string shuffle = "#define BARRIER __shfl_sync(0xffffffffu, 1, 0)";  // orders nothing
  for (const std::string& instead : {std::string("#define BARRIER"), shuffle}) {
    EXPECT_CUDA(RunOn128(instead + text, GetParam(), 32));
    EXPECT_THAT(Reports(), HasSubstr("a barrier is missing"));
  }
}

TEST_P(KernelTest, NamesRaceOfBlocks) {
  const std::string apart = R"(
extern "C" __global__ void f(float* x) {
  x[2 * blockIdx.x + 1] = x[2 * blockIdx.x];
  atomicAdd(reinterpret_cast<int*>(x) + 100, 1);
})";
  EXPECT_CUDA(RunOn128(apart, GetParam(), 1, 4));
  EXPECT_EQ(Reports(), "");
  const std::string shifted = R"(
extern "C" __global__ void f(float* x) {
  x[blockIdx.x + 1] = x[blockIdx.x];
})";
  EXPECT_CUDA(RunOn128(shifted, GetParam(), 1, 4));
  EXPECT_THAT(Reports(),
              ContainsRegex("blocks race: it (writes|reads) byte [0-9]+ of device memory 1 "
                            ".512 bytes., which another block of the launch uses, at test.cu:3"));
}

// The last block to come adds up what the others have stored.
TEST_P(KernelTest, NamesMissingFenceBetweenBlocks) {
  const std::string text = R"(
extern "C" __global__ void f(float* x) {
  x[threadIdx.x * gridDim.x + blockIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x != 0) return;
  BEFORE;
  if (atomicInc(reinterpret_cast<unsigned*>(x) + 100, gridDim.x - 1) != gridDim.x - 1) return;
  AFTER;
  for (int i = 0; i < 64; ++i) x[64] += x[i];
})";
  const std::string fence = "__threadfence()", none = "(void)0";
  const auto run = [&](const std::string& before, const std::string& after) {
    EXPECT_CUDA(RunOn128("#define BEFORE " + before + "\n#define AFTER " + after + text, GetParam(),
                         16, 4));
    return Reports();
  };
  EXPECT_EQ(run(fence, fence), "");
  EXPECT_THAT(run(none, fence), HasSubstr("blocks race: it reads byte"));
  EXPECT_THAT(run(fence, none), HasSubstr("blocks race: it reads byte"));
}

// An order that begins with a fence has nothing of what the block stores after it.
TEST_P(KernelTest, NamesStoreAfterFence) {
  const std::string text = R"(
extern "C" __global__ void f(float* x) {
  if (!LATE) x[blockIdx.x] = 1;
  __threadfence();
  if (LATE) x[blockIdx.x] = 1;
  if (atomicInc(reinterpret_cast<unsigned*>(x) + 100, gridDim.x - 1) != gridDim.x - 1) return;
  __threadfence();
  for (int i = 0; i < 4; ++i) x[64] += x[i];
})";
  EXPECT_CUDA(RunOn128("#define LATE 0" + text, GetParam(), 1, 4));
  EXPECT_EQ(Reports(), "");
  EXPECT_CUDA(RunOn128("#define LATE 1" + text, GetParam(), 1, 4));
  EXPECT_THAT(Reports(), HasSubstr("blocks race: it reads byte"));
}

TEST_P(KernelTest, NamesDivergentBarrier) {
  const std::string text = R"(
extern "C" __global__ void f(float* x) {
  if (threadIdx.x == 77) return;
  __syncthreads();
  x[threadIdx.x] = 1;
})";
  EXPECT_NE(RunOn128(text, GetParam(), 128), CUDA_SUCCESS);
  EXPECT_THAT(Reports(), HasSubstr("a barrier of the block is divergent: thread (77, 0, 0) has "
                                   "returned before it, at test.cu:4"));
}

TEST_P(KernelTest, NamesShuffleThatMissesLane) {
  const std::string text = R"(
extern "C" __global__ void f(float* x) {
  if (threadIdx.x == 40) return;
  x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
})";
  EXPECT_NE(RunOn128(text, GetParam(), 128), CUDA_SUCCESS);
  EXPECT_THAT(Reports(),
              HasSubstr("a warp operation misses lane 8 of its mask, which has returned"));
}

TEST_P(KernelTest, NamesShuffleFromLaneOutsideOfTheMask) {
  const std::string text = R"(
extern "C" __global__ void f(float* x) {
  if (threadIdx.x < 16) x[threadIdx.x] = __shfl_sync(0xffffu, x[threadIdx.x], 20);
})";
  EXPECT_NE(RunOn128(text, GetParam(), 32), CUDA_SUCCESS);
  EXPECT_THAT(Reports(), HasSubstr("a shuffle reads from lane 20, which its mask leaves out"));
}

TEST_P(KernelTest, NamesAccessOutOfBounds) {
  const std::string text = R"(
extern "C" __global__ void f(float* x) {
  x[blockIdx.x * blockDim.x + threadIdx.x] = 1;
})";
  EXPECT_EQ(RunOn128(text, GetParam(), 64, 3), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(Reports(), HasSubstr("kernel f, block (2, 0, 0), thread "));
  EXPECT_THAT(Reports(), ContainsRegex("writes out of bounds: byte [5-7][0-9][0-9] "
                                       "of device memory 1 .512 bytes., at test.cu:3"));
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS) << "the error is sticky";
  CUdeviceptr at = 0;
  EXPECT_EQ(cuMemAlloc(&at, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_P(KernelTest, NamesIndexBeyondSharedArray) {
  const std::string text = R"(
extern "C" __global__ void f(float* x) {
  __shared__ float part[32];
  part[threadIdx.x] = 1;
  __syncthreads();
  x[threadIdx.x] = part[0];
})";
  EXPECT_NE(RunOn128(text, GetParam(), 64), CUDA_SUCCESS);
  EXPECT_THAT(Reports(), HasSubstr("an index is out of the bounds of an array, at test.cu:4"));
}

TEST_P(KernelTest, NamesDynamicSharedMemoryBeyondTheLaunch) {
  const std::string text = R"(
extern "C" __global__ void f(float* x) {
  extern __shared__ float part[];
  part[threadIdx.x] = 1;
  x[threadIdx.x] = part[threadIdx.x];
})";
  EXPECT_CUDA(RunOn128(text, GetParam(), 64, 1, 256));
  EXPECT_EQ(Reports(), "");
  EXPECT_NE(RunOn128(text, GetParam(), 64, 1, 252), CUDA_SUCCESS);
  EXPECT_THAT(Reports(), HasSubstr("beyond the 252 bytes of dynamic shared memory"));
}

TEST_P(KernelTest, NamesMisalignedVector) {
  const std::string text = R"(
extern "C" __global__ void f(float* x) {
  float4 v = *reinterpret_cast<float4*>(x + OFFSET);
  x[0] = v.x + v.w;
})";
  EXPECT_CUDA(RunOn128("#define OFFSET 4" + text, GetParam(), 1));
  EXPECT_NE(RunOn128("#define OFFSET 1" + text, GetParam(), 1), CUDA_SUCCESS);
  EXPECT_THAT(Reports(), HasSubstr("an address is misaligned, at test.cu:3"));
}

// A new block's shared memory holds NaN, so that a kernel that relies on zeros gives NaN.
TEST(KernelsTest, SharedMemoryIsPoisoned) {
  const std::string text = R"(
extern "C" __global__ void f(float* x) {
  __shared__ float part[32];
  if (threadIdx.x == 0) part[0] = 5;
  __syncthreads();
  x[threadIdx.x] = part[threadIdx.x];
})";
  const Program program = Compile(text);
  Device device(1);
  const CUdeviceptr x = device.Memory(128);
  std::vector<float> host(32);
  EXPECT_CUDA(Launch(device.Load(program, "f"), 1, 32, 0, nullptr, x));
  EXPECT_CUDA(cuMemcpyDtoH(host.data(), x, 128));
  EXPECT_EQ(host[0], 5);
  for (int i = 1; i < 32; ++i) EXPECT_TRUE(std::isnan(host[i]));
}

TEST(KernelsTest, WarpOperationsAndAtomics) {
  const std::string text = R"(
extern "C" __global__ void f(int* x) {
  const unsigned all = 0xffffffffu;
  const int lane = threadIdx.x;
  int failures = 0;
  failures += __shfl_sync(all, lane, 3, 8) != lane / 8 * 8 + 3;
  failures += __shfl_up_sync(all, lane, 2, 8) != (lane % 8 < 2 ? lane : lane - 2);
  failures += __shfl_down_sync(all, lane, 2, 8) != (lane % 8 > 5 ? lane : lane + 2);
  failures += __shfl_xor_sync(all, lane, 5) != (lane ^ 5);
  failures += __ballot_sync(all, lane % 2) != 0xaaaaaaaau;
  failures += __any_sync(all, lane == 9) != 1;
  failures += __all_sync(all, lane < 31) != 0;
  failures += __match_any_sync(all, lane % 4) != 0x11111111u << lane % 4;
  failures += __reduce_add_sync(all, lane) != 496;
  failures += __syncthreads_count(lane < 5) != 5;
  failures += __popc(0xf0u) != 4 || __ffs(8) != 4 || __clz(1) != 31 || __brev(1u) != 0x80000000u;
  if (lane < 8) failures += __shfl_sync(0xffu, lane, 7) != 7;
  atomicAdd(&x[0], failures);
  atomicMax(&x[1], lane);
  atomicCAS(&x[2], 0, lane + 1);
})";
  const Program program = Compile(text);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Device device(seed);
    const CUdeviceptr x = device.Memory(12);
    int host[3] = {-1, -1, -1};
    EXPECT_CUDA(cuMemsetD32(x, 0, 3));
    EXPECT_CUDA(Launch(device.Load(program, "f"), 1, 32, 0, nullptr, x));
    EXPECT_CUDA(cuMemcpyDtoH(host, x, 12));
    EXPECT_EQ(Reports(), "");
    EXPECT_EQ(host[0], 0);
    EXPECT_EQ(host[1], 31);
    EXPECT_GE(host[2], 1);
  }
}

// The real headers' conversions, on the CPU: to the nearest, ties to even.
TEST(KernelsTest, HalfTypesRoundAsTheirStandardSays) {
  const std::string text = R"(
#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __global__ void f(__nv_bfloat16* b, __half* h) {
  const float values[4] = {1.00390625f, 1.01171875f, -3e38f, 65519.0f};
  b[threadIdx.x] = __float2bfloat16(values[threadIdx.x]);
  h[threadIdx.x] = __float2half(values[threadIdx.x]);
})";
  const Program program = Compile(text);
  Device device(1);
  const CUdeviceptr b = device.Memory(8), h = device.Memory(8);
  std::vector<std::uint16_t> bfloats(4), halves(4);
  ASSERT_CUDA(Launch(device.Load(program, "f"), 1, 4, 0, nullptr, b, h));
  ASSERT_CUDA(cuMemcpyDtoH(bfloats.data(), b, 8));
  ASSERT_CUDA(cuMemcpyDtoH(halves.data(), h, 8));
  EXPECT_THAT(bfloats, ::testing::ElementsAre(0x3f80, 0x3f82, 0xff62, 0x4780));
  EXPECT_THAT(halves, ::testing::ElementsAre(0x3c04, 0x3c0c, 0xfc00, 0x7bff));
}

TEST(KernelsTest, LayerNormOfWarps) {
  constexpr int kRows = 7, kColumns = 70;
  const Program program = Compile(KernelText("layer_norm.cuh"));
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Device device(seed);
    const CUfunction layer_norm = device.Load(program, "layer_norm");
    std::vector<float> x(kRows * kColumns), y(x.size()), ones(kColumns, 1.0f);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::cos(static_cast<float>(i));
    CUdeviceptr from = device.Memory(x.size() * 4), to = device.Memory(x.size() * 4);
    CUdeviceptr gamma = device.Memory(kColumns * 4), beta = device.Memory(kColumns * 4);
    int rows = kRows, columns = kColumns;
    float epsilon = 1e-5f;
    ASSERT_CUDA(cuMemcpyHtoD(from, x.data(), x.size() * 4));
    ASSERT_CUDA(cuMemcpyHtoD(gamma, ones.data(), kColumns * 4));
    ASSERT_CUDA(cuMemsetD32(beta, 0, kColumns));
    void* arguments[] = {&from, &gamma, &beta, &to, &rows, &columns, &epsilon};
    ASSERT_CUDA(
        cuLaunchKernel(layer_norm, 2, 1, 1, 32, 4, 1, kColumns * 4, nullptr, arguments, nullptr));
    ASSERT_CUDA(cuMemcpyDtoH(y.data(), to, y.size() * 4));
    EXPECT_EQ(Reports(), "");
    for (int row = 0; row < kRows; ++row) {
      double sum = 0, square = 0;
      for (int i = 0; i < kColumns; ++i) {
        sum += y[row * kColumns + i];
        square += double{y[row * kColumns + i]} * y[row * kColumns + i];
      }
      EXPECT_NEAR(sum / kColumns, 0, 1e-6);
      EXPECT_NEAR(square / kColumns, 1, 1e-4) << "epsilon takes 2e-5 of it";
    }
  }
}

}  // namespace
}  // namespace standin_test
