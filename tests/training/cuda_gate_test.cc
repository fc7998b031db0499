// SPDX-License-Identifier: Apache-2.0
// Updates on the device wait until all of the step was accepted (core/providers/write_gate.h): no
// parameter is copied, and a step that fails has changed none.
#include <thread>

#include "tests/training/cuda_training.h"

namespace caesura::testing {
namespace {

constexpr int kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY

class CudaGate : public CudaTraining {
 protected:
  // Two updates: one may fail after the other.
  static RealModel InTwoGroups(Optimizer optimizer) {
    RealModel model = Mlp();
    model.options.step.optimizer = std::move(optimizer);
    model.options.step.groups = {{.names = {"w0"},
                                  .learning_rate_scale = 0.5,
                                  .weight_decay = 0.0,
                                  .optimizer = std::nullopt}};
    return model;
  }
  static Values All(const TrainingSession& session) {
    Values out;
    ReadParameters(session, &out);
    return out;
  }
};

TEST_F(CudaGate, UpdatesAreNotCopied) {
  SKIP_ON_GPU();
  for (const RealModel& model : {Mlp(), CharGpt(), Llama()}) {
    SCOPED_TRACE(model.model.graph->name());
    const RealModel clipped = Clipped(model)[0].Clone();
    auto session = SessionOn(clipped, Cuda());
    ASSERT_TRUE(session->Step(model.batches[0]).ok());
    const uint64_t waits = Operations("wait for a value"), copies = Operations("kernel copy_all"),
                   within = Calls("cuMemcpyDtoDAsync");
    ASSERT_TRUE(session->Step(model.batches[1]).ok());
    EXPECT_EQ(Operations("wait for a value") - waits, 1u);
    EXPECT_EQ(Operations("kernel copy_all") - copies, 0u);
    EXPECT_EQ(Calls("cuMemcpyDtoDAsync") - within, 0u);
  }
}

// Whichever call of the driver fails, parameters and optimizer state have the bits of before, and
// the step can be done again.
TEST_F(CudaGate, AFailedStepHasWrittenNothing) {
  SKIP_ON_GPU();
  for (const Optimizer& optimizer :
       {Optimizer(AdamW{.learning_rate = 2e-3}), Optimizer(NAdam{}), Optimizer(Lamb{})}) {
    SCOPED_TRACE("optimizer " + std::to_string(optimizer.index()));
    const RealModel model = InTwoGroups(optimizer);
    auto undisturbed = SessionOn(model, Cuda(Unchecked()));
    auto session = SessionOn(model, Cuda(Unchecked()));
    Values wanted = All(*session);
    for (const char* call : {"cuStreamWaitValue32", "cuLaunchKernel", "cuMemcpyDtoHAsync"}) {
      int failed = 0;
      for (int n = 1;; ++n) {
        SCOPED_TRACE(std::string(call) + ", call " + std::to_string(n));
        Call<decltype(standin_fail)>("standin_fail")(call, n, kOutOfMemory);
        const Result<double> loss = session->Step(model.batches[0]);
        if (loss.ok()) break;
        ++failed;
        ASSERT_TRUE(SameBits(All(*session), wanted));
      }
      Call<decltype(standin_fail)>("standin_fail")(call, 0, 0);
      EXPECT_GE(failed, std::string(call) == "cuLaunchKernel" ? 10 : 1);
      ASSERT_TRUE(undisturbed->Step(model.batches[0]).ok());
      wanted = All(*undisturbed);
      ASSERT_TRUE(SameBits(All(*session), wanted));
    }
  }
}

// A launch at a closed gate would then wait for ever.
TEST_F(CudaGate, UpdatesAreCopiedWhereLaunchesWait) {
  SKIP_ON_GPU();
  const RealModel model = InTwoGroups(AdamW{.learning_rate = 2e-3});
  const Trained wanted = TrainOn(model, Cuda(Unchecked()), 2);
  const uint64_t before = Operations("kernel copy_all");
  EXPECT_EQ(before, 0u);
  Call<decltype(standin_block_launches)>("standin_block_launches")(1);
  EXPECT_TRUE(TrainOn(model, Cuda(Unchecked()), 2) == wanted);
  EXPECT_GT(Operations("kernel copy_all"), before);
  Call<decltype(standin_block_launches)>("standin_block_launches")(0);
  EXPECT_TRUE(TrainOn(model, Cuda(Unchecked()), 2) == wanted);
}

// As where another thread waits for the device, and keeps this one from the driver meanwhile.
TEST_F(CudaGate, AGateThatStaysClosedIsOpened) {
  SKIP_ON_GPU();
  const RealModel model = InTwoGroups(AdamW{.learning_rate = 2e-3});
  const Trained wanted = TrainOn(model, Cuda(Unchecked()), 3);
  const uint64_t before = Operations("kernel copy_all");
  auto session = SessionOn(model, Cuda(Unchecked()));
  Trained got;
  for (int i = 0; i < 3; ++i) {
    // The copy of the loss, while the updates wait.
    if (i == 1) Call<decltype(standin_delay)>("standin_delay")("cuMemcpyDtoHAsync", 1, 3000);
    const auto loss = session->Step(model.batches[static_cast<size_t>(i) % model.batches.size()]);
    ASSERT_TRUE(loss.ok()) << loss.status().ToString();
    got.losses.push_back(Tensor::Of<double>(Shape{}, {*loss}));
    EXPECT_EQ(Operations("kernel copy_all") > before, i >= 1);
  }
  ReadParameters(*session, &got.parameters);
  EXPECT_TRUE(got == wanted);
}

// Only one of them can have the gate; the other keeps copies.
TEST_F(CudaGate, TwoSessionsOfOneProvider) {
  const RealModel model = InTwoGroups(AdamW{.learning_rate = 2e-3});
  const Trained wanted = TrainOn(model, Cuda(Unchecked()), 4);
  const ProviderList shared = Cuda(Unchecked());
  Trained got[2];
  std::vector<std::thread> threads;
  for (Trained& one : got) threads.emplace_back([&] { one = TrainOn(model, shared, 4); });
  for (std::thread& thread : threads) thread.join();
  for (const Trained& one : got) EXPECT_TRUE(one == wanted);
}

}  // namespace
}  // namespace caesura::testing
