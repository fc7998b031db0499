// SPDX-License-Identifier: Apache-2.0
// Ranks on the stand-in GPUs of one process, a thread each, with NCCL's stand-in between them.
#ifndef CAESURA_TESTS_CORE_PROVIDERS_CUDA_GPU_RANKS_H_
#define CAESURA_TESTS_CORE_PROVIDERS_CUDA_GPU_RANKS_H_

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/distributed/communicator.h"
#include "core/providers/cuda/cuda_provider.h"
#include "tests/core/providers/cuda/standin_cuda.h"
#include "tests/test_paths.h"

namespace caesura::testing {

class GpuRanks : public StandinCuda {
 protected:
  void SetUp() override {
    SKIP_ON_GPU();
    StandinCuda::SetUp();
  }
  static CudaOptions OptionsOfRank(int rank) {
    CudaOptions out = Unchecked();
    out.device_id = rank;
    out.libraries.nccl = kStandinNccl;
    return out;
  }

  // Runs the body on each rank.
  void RunGpuRanks(int size, const std::function<void(Communicator&, const CudaOptions&)>& body) {
    Call<decltype(standin_reset)>("standin_reset")(seed_);
    Call<decltype(standin_set_devices)>("standin_set_devices")(size);
    auto controls = LocalCommunicators(size);
    std::vector<std::thread> threads;
    for (auto& control : controls) {
      threads.emplace_back([&body, &control] {
        const CudaOptions options = OptionsOfRank(control->rank());
        auto ranks = NcclCommunicator(std::move(control), options);
        ASSERT_TRUE(ranks.ok()) << ranks.status().ToString();
        body(**ranks, options);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_PROVIDERS_CUDA_GPU_RANKS_H_
