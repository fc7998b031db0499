// SPDX-License-Identifier: Apache-2.0
// Updates on the device wait until all of the step was accepted (core/providers/write_gate.h): no
// parameter is copied, and a step that fails has changed none.
#include <cuda.h>
#include <unistd.h>

#include <thread>

#include "tests/training/cuda_training.h"

namespace caesura::testing {
namespace {

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
  void FailLaunch(int n) const {
    Call<decltype(standin_fail)>("standin_fail")("cuLaunchKernel", n,
                                                 n > 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
  }
  // Longer than a gate stays closed.
  void DelayLaunch(int n) const {
    Call<decltype(standin_delay)>("standin_delay")("cuLaunchKernel", n, 3000);
  }
  void BlockLaunches(bool on) const {
    Call<decltype(standin_block_launches)>("standin_block_launches")(on);
  }

  struct Launches {
    int all = 0, first_held = 0;  // of a step; from 1
  };
  Launches LaunchesOfStep(const RealModel& model) const {
    auto session = SessionOn(model, Cuda(Unchecked()));
    EXPECT_TRUE(session->Step(model.batches[0]).ok());
    Launches out;
    const uint64_t gates = Operations("wait for a value"), before = Calls("cuLaunchKernel");
    EXPECT_TRUE(session->Step(model.batches[0]).ok());
    out.all = static_cast<int>(Calls("cuLaunchKernel") - before);
    for (int n = 1; n <= out.all && Operations("wait for a value") == gates + 1; ++n) {
      FailLaunch(n);
      EXPECT_FALSE(session->Step(model.batches[0]).ok());
      out.first_held = n;
    }
    FailLaunch(0);
    return out;
  }

  // Three steps, with disturb() before the second one. Where the program hangs it is ended.
  template <typename Disturb>
  Trained Disturbed(const RealModel& model, const Disturb& disturb) const {
    auto session = SessionOn(model, Cuda(Unchecked()));
    Trained out;
    for (size_t i = 0; i < 3; ++i) {
      if (i == 1) disturb();
      alarm(120);
      const auto loss = session->Step(model.batches[i % model.batches.size()]);
      alarm(0);
      EXPECT_TRUE(loss.ok()) << loss.status().ToString();
      if (!loss.ok()) return out;
      out.losses.push_back(Tensor::Of<double>(Shape{}, {*loss}));
    }
    ReadParameters(*session, &out.parameters);
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
        Call<decltype(standin_fail)>("standin_fail")(call, n, CUDA_ERROR_OUT_OF_MEMORY);
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
  BlockLaunches(true);
  EXPECT_TRUE(TrainOn(model, Cuda(Unchecked()), 2) == wanted);
  EXPECT_GT(Operations("kernel copy_all"), before);
  BlockLaunches(false);
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

// Each launch after the gate's in turn takes long: the step is done once more, with copies. A
// launch before it disturbs nothing. CAESURA_LONG=1: all launches, and an optimizer with several
// passes.
TEST_F(CudaGate, AnyLaunchTakesLong) {
  SKIP_ON_GPU();
  std::vector<Optimizer> optimizers = {AdamW{.learning_rate = 2e-3}};
  if (Every(2) == 1) optimizers.push_back(Lamb{});
  for (const Optimizer& optimizer : optimizers) {
    SCOPED_TRACE("optimizer " + std::to_string(optimizer.index()));
    const RealModel model = InTwoGroups(optimizer);
    const Trained wanted = TrainOn(model, Cuda(Unchecked()), 3);
    const Launches launches = LaunchesOfStep(model);
    ASSERT_LT(1, launches.first_held);
    ASSERT_LT(launches.first_held, launches.all);
    for (int n = Every(2) == 1 ? 1 : launches.first_held; n <= launches.all; ++n) {
      SCOPED_TRACE("launch " + std::to_string(n) + " of " + std::to_string(launches.all));
      const uint64_t copies = Operations("kernel copy_all");
      EXPECT_TRUE(Disturbed(model, [&] { DelayLaunch(n); }) == wanted);
      EXPECT_EQ(Operations("kernel copy_all") > copies, n >= launches.first_held);
    }
  }
}

// As where a debugger or profiler comes to a program that has closed gates before; then also with
// a launch that takes longer than the gate stays closed, and than its trial may.
TEST_F(CudaGate, LaunchesBeginToWait) {
  SKIP_ON_GPU();
  const RealModel model = InTwoGroups(AdamW{.learning_rate = 2e-3});
  const Trained wanted = TrainOn(model, Cuda(Unchecked()), 3);
  const int first_held = LaunchesOfStep(model).first_held;
  for (const bool late : {false, true}) {
    SCOPED_TRACE(late);
    const uint64_t copies = Operations("kernel copy_all");
    EXPECT_TRUE(Disturbed(model, [&] {
                  BlockLaunches(true);
                  if (late) DelayLaunch(first_held);
                }) == wanted);
    EXPECT_GT(Operations("kernel copy_all"), copies);
    BlockLaunches(false);
  }
  BlockLaunches(true);
  DelayLaunch(first_held);  // of the first step
  EXPECT_TRUE(Disturbed(model, [] {}) == wanted);
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
