// SPDX-License-Identifier: Apache-2.0
// The stand-in NCCL: two ranks on one thread, and the ways to use it wrongly. Every other seed
// exchanges by files, as ranks in several processes do.
#include <nccl.h>
#include <unistd.h>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include "standin_device.h"

namespace standin_test {
namespace {

using ::testing::HasSubstr;

constexpr unsigned kCount = 16;
constexpr std::size_t kBytes = kCount * sizeof(float);

class NcclTest : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  struct Rank {
    CUcontext context = nullptr;
    CUstream compute = nullptr, exchange = nullptr;
    CUevent written = nullptr;
    ncclComm_t comm = nullptr;
    CUdeviceptr data = 0;
    float* host = nullptr;
    void Use() const { ASSERT_CUDA(cuCtxSetCurrent(context)); }
  };

  void SetUp() override {
    if (GetParam() % 2 != 0) {
      folder_ = ::testing::TempDir() + "nccl-" + std::to_string(getpid());
      setenv("STANDIN_NCCL_FOLDER", folder_.c_str(), 1);
    }
    standin_reset(GetParam());
    standin_set_devices(2);
    ASSERT_CUDA(cuInit(0));
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < 2; ++r) {
      Rank& rank = ranks_[r];
      ASSERT_CUDA(cuDevicePrimaryCtxRetain(&rank.context, r));
      rank.Use();
      ASSERT_CUDA(cuStreamCreate(&rank.compute, CU_STREAM_NON_BLOCKING));
      ASSERT_CUDA(cuStreamCreate(&rank.exchange, CU_STREAM_NON_BLOCKING));
      ASSERT_CUDA(cuEventCreate(&rank.written, CU_EVENT_DISABLE_TIMING));
      ASSERT_CUDA(cuMemAlloc(&rank.data, kBytes));
      void* host = nullptr;
      ASSERT_CUDA(cuMemAllocHost(&host, kBytes));
      rank.host = static_cast<float*>(host);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ASSERT_EQ(ncclCommInitRankConfig(&rank.comm, 2, id, r, &config), ncclInProgress);
    }
    for (const Rank& rank : ranks_) Settle(rank.comm);
  }
  void TearDown() override {
    for (const Rank& rank : ranks_) {
      if (rank.comm != nullptr) {
        EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
      }
    }
    EXPECT_EQ(standin_nccl_communicators(), 0u);
    unsetenv("STANDIN_NCCL_FOLDER");
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  static void Settle(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    for (int i = 0; i < 10 && state == ncclInProgress; ++i) {
      ASSERT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    }
    ASSERT_EQ(state, ncclSuccess);
  }

  // Fills the memory on the stream of computations; the exchange waits for it.
  static void Write(const Rank& rank, float value, bool waits = true) {
    rank.Use();
    for (unsigned i = 0; i < kCount; ++i) rank.host[i] = value;
    ASSERT_CUDA(cuMemcpyHtoDAsync(rank.data, rank.host, kBytes, rank.compute));
    ASSERT_CUDA(cuEventRecord(rank.written, rank.compute));
    if (waits) {
      ASSERT_CUDA(cuStreamWaitEvent(rank.exchange, rank.written, 0));
    }
  }
  static ncclResult_t AllReduce(const Rank& rank, std::size_t count = kCount,
                                ncclDataType_t type = ncclFloat32) {
    rank.Use();
    void* data = reinterpret_cast<void*>(rank.data);
    return ncclAllReduce(data, data, count, type, ncclSum, rank.comm, rank.exchange);
  }
  static float Read(const Rank& rank) {
    rank.Use();
    EXPECT_CUDA(cuMemcpyDtoHAsync(rank.host, rank.data, kBytes, rank.exchange));
    EXPECT_CUDA(cuStreamSynchronize(rank.exchange));
    return rank.host[kCount - 1];
  }

  Rank ranks_[2];
  std::string folder_;
};
INSTANTIATE_TEST_SUITE_P(Seeds, NcclTest, ::testing::Range<std::uint64_t>(0, kSeeds));

TEST_P(NcclTest, AddsAndGivesNoReport) {
  for (int r = 0; r < 2; ++r) {
    Write(ranks_[r], static_cast<float>(r + 1));
    ASSERT_EQ(AllReduce(ranks_[r]), ncclSuccess);
  }
  for (const Rank& rank : ranks_) EXPECT_EQ(Read(rank), 3.0f);
  EXPECT_EQ(Reports(), "");
}

TEST_P(NcclTest, ACollectiveWaitsForTheOtherRank) {
  const Rank& rank = ranks_[0];
  Write(rank, 1);
  ASSERT_EQ(AllReduce(rank), ncclSuccess);
  ASSERT_CUDA(cuEventRecord(rank.written, rank.exchange));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(cuEventQuery(rank.written), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(Reports(), "");
}

TEST_P(NcclTest, AnAbortEndsItWithoutTheMemory) {
  Rank& rank = ranks_[0];
  Write(rank, 1);
  ASSERT_EQ(AllReduce(rank), ncclSuccess);
  ASSERT_EQ(ncclCommAbort(std::exchange(rank.comm, nullptr)), ncclSuccess);
  EXPECT_EQ(Read(rank), 1.0f);
  EXPECT_EQ(Reports(), "");
}

TEST_P(NcclTest, SendsAndReceivesInAGroupMeetInAnyOrder) {
  for (int r = 0; r < 2; ++r) {
    Rank& rank = ranks_[r];
    Write(rank, static_cast<float>(r + 1));
    auto* data = reinterpret_cast<char*>(rank.data);
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    ASSERT_EQ(ncclSend(data, 4, ncclFloat32, 1 - r, rank.comm, rank.exchange), ncclSuccess);
    ASSERT_EQ(ncclRecv(data + kBytes / 2, 4, ncclFloat32, 1 - r, rank.comm, rank.exchange),
              ncclSuccess);
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
  }
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(Read(ranks_[r]), static_cast<float>(r + 1));
    EXPECT_EQ(ranks_[r].host[kCount / 2], static_cast<float>(2 - r));
  }
  EXPECT_EQ(Reports(), "");
}

TEST_P(NcclTest, NamesARemovedEventWait) {
  for (int r = 0; r < 2; ++r) {
    Write(ranks_[r], 1, /*waits=*/r == 0);
    ASSERT_EQ(AllReduce(ranks_[r]), ncclSuccess);
  }
  for (const Rank& rank : ranks_) Read(rank);
  cuCtxSynchronize();
  EXPECT_THAT(Reports(), HasSubstr("not ordered: "));
}

TEST_P(NcclTest, NamesAnOutputThatIsReadTooEarly) {
  for (const Rank& rank : ranks_) {
    Write(rank, 1);
    ASSERT_EQ(AllReduce(rank), ncclSuccess);
  }
  const Rank& rank = ranks_[0];
  rank.Use();
  ASSERT_CUDA(cuMemcpyDtoHAsync(rank.host, rank.data, kBytes, rank.compute));
  for (const Rank& each : ranks_) {
    each.Use();
    cuCtxSynchronize();
  }
  EXPECT_THAT(Reports(), HasSubstr("not ordered: "));
}

TEST_P(NcclTest, NamesRanksThatDiffer) {
  for (int r = 0; r < 2; ++r) {
    Write(ranks_[r], 1);
    ASSERT_EQ(AllReduce(ranks_[r], kCount - static_cast<std::size_t>(r)), ncclSuccess);
    ASSERT_CUDA(cuEventRecord(ranks_[r].written, ranks_[r].exchange));
  }
  for (int i = 0; i < 50; ++i) EXPECT_EQ(cuEventQuery(ranks_[1].written), CUDA_ERROR_NOT_READY);
  EXPECT_THAT(Reports(), HasSubstr("ranks of a communicator differ: ncclAllReduce of "));
}

TEST_P(NcclTest, NamesMemoryBeyondTheAllocation) {
  EXPECT_EQ(AllReduce(ranks_[0], kCount + 1), ncclUnhandledCudaError);
  EXPECT_THAT(Reports(), HasSubstr("out of bounds: nccl reads to byte 68"));
}

TEST_P(NcclTest, NamesAContextOfAnotherDevice) {
  ranks_[1].Use();
  void* data = reinterpret_cast<void*>(ranks_[0].data);
  EXPECT_EQ(ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, ranks_[0].comm, ranks_[0].exchange),
            ncclInvalidArgument);
  EXPECT_THAT(Reports(), HasSubstr("the context of another device is current"));
}

TEST_P(NcclTest, AddsEachType) {
  const auto add = [&](auto one, ncclDataType_t type) {
    for (const Rank& rank : ranks_) {
      rank.Use();
      std::memcpy(rank.host, &one, sizeof(one));
      ASSERT_CUDA(cuMemcpyHtoDAsync(rank.data, rank.host, kBytes, rank.exchange));
      ASSERT_EQ(AllReduce(rank, 1, type), ncclSuccess);
    }
    for (const Rank& rank : ranks_) Read(rank);
    std::memcpy(&one, ranks_[1].host, sizeof(one));
    EXPECT_EQ(static_cast<double>(one), 6.0) << type;
  };
  add(std::int8_t{3}, ncclInt8);
  add(std::uint8_t{3}, ncclUint8);
  add(std::int32_t{3}, ncclInt32);
  add(std::uint32_t{3}, ncclUint32);
  add(std::int64_t{3}, ncclInt64);
  add(std::uint64_t{3}, ncclUint64);
  add(3.0f, ncclFloat32);
  add(3.0, ncclFloat64);
  EXPECT_EQ(Reports(), "");
}

}  // namespace
}  // namespace standin_test
