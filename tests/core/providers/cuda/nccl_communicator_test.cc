// SPDX-License-Identifier: Apache-2.0
// Ranks on the stand-in GPUs of one process, a thread each.
#include "core/providers/cuda/cuda_provider.h"

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/status_macros.h"
#include "core/tensor/tensor.h"
#include "tests/core/distributed/communicator_suite.h"
#include "tests/core/providers/cuda/gpu_ranks.h"
#include "tests/test_paths.h"

namespace caesura::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A collective of host memory, done in the device's: what the suite's checks ask for.
class Staged : public Communicator {
 public:
  Staged(Communicator& inner, std::shared_ptr<const ExecutionProvider> provider)
      : inner_(inner), provider_(std::move(provider)) {}
  std::string name() const override { return inner_.name(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void Abort(const std::string& why) override { inner_.Abort(why); }
  Result<std::unique_ptr<Work>> Start(const Collective& host) override {
    RETURN_IF_ERROR(CheckCollective(host, size()));
    auto work = std::make_unique<StagedWork>(provider_);
    Collective device = host;
    device.stream = provider_->stream();
    const size_t part = static_cast<size_t>(host.count) * DTypeSize(host.dtype);
    work->to = host.output;
    if (host.output != nullptr) {
      work->bytes = part * static_cast<size_t>(host.OutputParts(size()));
      ASSIGN_OR_RETURN(work->output, provider_->allocator().Allocate(work->bytes));
      device.output = work->output->data();
    }
    if (host.input != nullptr) {
      const size_t bytes = part * static_cast<size_t>(host.InputParts(size()));
      work->input = work->output;
      if (host.input != host.output) {
        ASSIGN_OR_RETURN(work->input, provider_->allocator().Allocate(bytes));
      }
      device.input = work->input->data();
      RETURN_IF_ERROR(provider_->Copy(CopyKind::kToDevice, work->input->data(), host.input, bytes));
    }
    ASSIGN_OR_RETURN(work->inner, inner_.Start(device));
    return std::unique_ptr<Work>(std::move(work));
  }

 protected:
  Result<std::vector<int64_t>> GatherWords(std::span<const int64_t> words,
                                           Clock::time_point deadline) override {
    return inner_.Gather(words, deadline);
  }

 private:
  struct StagedWork : Work {
    explicit StagedWork(std::shared_ptr<const ExecutionProvider> provider)
        : provider(std::move(provider)) {}
    Status Wait(Clock::time_point deadline) override {
      RETURN_IF_ERROR(inner->Wait(deadline));
      if (to != nullptr)
        RETURN_IF_ERROR(provider->Copy(CopyKind::kToHost, to, output->data(), bytes));
      return provider->Synchronise();
    }
    std::shared_ptr<const ExecutionProvider> provider;
    std::shared_ptr<Buffer> input, output;
    std::unique_ptr<Work> inner;
    void* to = nullptr;
    size_t bytes = 0;
  };
  Communicator& inner_;
  const std::shared_ptr<const ExecutionProvider> provider_;
};

using NcclCommunicators = GpuRanks;

TEST_F(NcclCommunicators, DoWhatEveryCommunicatorDoes) {
  for (const int size : {1, 2, 4}) {
    seed_ = static_cast<uint64_t>(size);
    RunGpuRanks(size, [&](Communicator& c, const CudaOptions& options) {
      Staged staged(c, Provider(options));
      for (const RankCheck& check : RankChecks()) EXPECT_EQ(check.body(staged), "") << check.name;
    });
  }
}

TEST_F(NcclCommunicators, ALateRankIsAnErrorAndAnAbortFreesTheMemory) {
  RunGpuRanks(2, [&](Communicator& c, const CudaOptions& options) {
    if (c.rank() == 1) return;  // never comes
    const auto provider = Provider(options);
    const auto buffer = *provider->allocator().Allocate(64);
    ASSERT_TRUE(
        provider->Copy(CopyKind::kToDevice, buffer->data(), std::vector<char>(64).data(), 64).ok());
    Collective sum = Collective::AllReduce(DType::kFloat32, buffer->data(), 16);
    sum.stream = provider->stream();
    const auto work = c.Start(sum);
    ASSERT_TRUE(work.ok()) << work.status().ToString();
    // The stream waits, not the host.
    EXPECT_TRUE((*work)->Wait(Clock::now()).ok());
    const int64_t words[] = {1};
    const Status late = c.Gather(words, Clock::now() + milliseconds(50)).status();
    EXPECT_EQ(late.code(), StatusCode::kRankFailure);
    EXPECT_NE(late.message().find("a rank has not come to it, or is lost"), std::string::npos)
        << late.message();
    EXPECT_TRUE(provider->Synchronise().ok());  // the collective has ended
    EXPECT_EQ(c.Start(sum).status().code(), StatusCode::kRankFailure);
  });
}

// Rank 1 comes to the sum only after the meeting.
TEST_F(NcclCommunicators, AMeetingWaitsForNoCollectiveOfADevice) {
  RunGpuRanks(2, [&](Communicator& c, const CudaOptions& options) {
    const auto provider = Provider(options);
    const auto buffer = *provider->allocator().Allocate(64);
    Collective sum = Collective::AllReduce(DType::kFloat32, buffer->data(), 16);
    sum.stream = provider->stream();
    std::unique_ptr<Work> work;
    if (c.rank() == 0) work = c.Start(sum).value();
    const int64_t words[] = {c.rank()};
    const auto all = c.Meet(words, Clock::now() + seconds(60));
    ASSERT_TRUE(all.ok()) << all.status().ToString();
    EXPECT_EQ(*all, std::vector<int64_t>({0, 1}));
    if (c.rank() == 1) work = c.Start(sum).value();
    EXPECT_TRUE(work->Wait(Clock::now() + seconds(60)).ok());
    EXPECT_TRUE(c.Gather(words, Clock::now() + seconds(60)).ok());
  });
}

TEST_F(NcclCommunicators, AnAbortEndsTheWaitOfThisRankAndOfOthers) {
  RunGpuRanks(2, [&](Communicator& c, const CudaOptions& options) {
    const auto provider = Provider(options);
    const auto buffer = *provider->allocator().Allocate(64);
    if (c.rank() == 1) return c.Abort("out of memory");
    Collective sum = Collective::AllReduce(DType::kFloat32, buffer->data(), 16);
    sum.stream = provider->stream();
    ASSERT_TRUE(c.Start(sum).ok());
    const int64_t words[] = {1};
    const Status status = c.Gather(words, Clock::now() + milliseconds(50)).status();
    EXPECT_EQ(status.code(), StatusCode::kRankFailure) << status.message();
  });
}

TEST_F(NcclCommunicators, AnErrorThatNcclFindsLaterIsNamed) {
  RunGpuRanks(1, [&](Communicator& c, const CudaOptions& options) {
    const auto provider = Provider(options);
    const auto buffer = *provider->allocator().Allocate(64);
    Collective sum = Collective::AllReduce(DType::kFloat32, buffer->data(), 16);
    sum.stream = provider->stream();
    const auto work = c.Start(sum);
    ASSERT_TRUE(work.ok()) << work.status().ToString();
    Call<decltype(standin_fail)>("standin_fail")("ncclCommGetAsyncError", 1, 6);
    const Status status = (*work)->Wait(Clock::now() + seconds(60));
    EXPECT_EQ(status.code(), StatusCode::kRankFailure);
    EXPECT_NE(status.message().find("all_reduce of 16 float32 (sum) failed on rank 0: remote"),
              std::string::npos)
        << status.message();
    c.Abort(status.message());
  });
}

TEST_F(NcclCommunicators, ARankWithoutItsGpuStopsAll) {
  Call<decltype(standin_reset)>("standin_reset")(seed_);
  auto controls = LocalCommunicators(2);  // but one device
  std::vector<std::thread> threads;
  for (auto& control : controls) {
    threads.emplace_back([&control] {
      const int rank = control->rank();
      const Status status = NcclCommunicator(std::move(control), OptionsOfRank(rank)).status();
      EXPECT_EQ(status.code(), StatusCode::kUnsupported);
      const char* expected = rank == 0 ? "nccl: rank 1 has no GPU" : "has no device 1";
      EXPECT_NE(status.message().find(expected), std::string::npos) << status.message();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(NcclCommunicators, RanksWithOneGpuAreRefused) {
  Call<decltype(standin_reset)>("standin_reset")(seed_);
  auto controls = LocalCommunicators(2);
  std::vector<std::thread> threads;
  for (auto& control : controls) {
    threads.emplace_back([&control] {
      const Status status = NcclCommunicator(std::move(control), OptionsOfRank(0)).status();
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find("nccl: ranks 0 and 1 have the same GPU"), std::string::npos)
          << status.message();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(NcclCommunicators, ShortIntegersMoveAndAreNotReduced) {
  RunGpuRanks(1, [&](Communicator& c, const CudaOptions& options) {
    const auto provider = Provider(options);
    const auto buffer = *provider->allocator().Allocate(64);
    Collective moved = Collective::Broadcast(DType::kInt16, buffer->data(), 8);
    moved.stream = provider->stream();
    const auto work = c.Start(moved);
    ASSERT_TRUE(work.ok() && (*work)->Wait(Clock::now() + seconds(60)).ok());
    EXPECT_EQ(c.Start(Collective::AllReduce(DType::kInt16, buffer->data(), 8)).status().code(),
              StatusCode::kUnsupported);
  });
}

// On one GPU, a real one too.
using NcclOnOneGpu = StandinCuda;

TEST_F(NcclOnOneGpu, DoesWhatEveryCommunicatorDoes) {
  CudaOptions options = Options();
  if (!OnGpu()) options.libraries.nccl = kStandinNccl;
  auto rank = NcclCommunicator(std::move(LocalCommunicators(1)[0]), options);
  ASSERT_TRUE(rank.ok()) << rank.status().ToString();
  Staged staged(**rank, Provider(options));
  for (const RankCheck& check : RankChecks()) EXPECT_EQ(check.body(staged), "") << check.name;
}

}  // namespace
}  // namespace caesura::testing
