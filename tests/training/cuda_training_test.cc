// SPDX-License-Identifier: Apache-2.0
// Whole training steps of the example models with the CUDA provider on its stand-ins: the CPU's
// losses and parameters, and the same bits from run to run.
#include <cuda.h>

#include <cmath>
#include <cstdlib>

#include "tests/temporary_folder.h"
#include "tests/training/cuda_training.h"

namespace caesura::testing {
namespace {

TEST_F(CudaTraining, AllOfAStepIsOnTheDevice) {
  for (const RealModel& model : {Mlp(), CharGpt(), Llama()}) {
    std::vector<RealModel> all = Clipped(model);
    for (const DType precision : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      SCOPED_TRACE(model.model.graph->name() + " in " + DTypeName(precision));
      for (RealModel& clipped : all) {
        clipped.options.step.precision = precision;
        EXPECT_THAT(OnHost(clipped), ::testing::IsEmpty());
      }
    }
  }
}

TEST_F(CudaTraining, OnlyFeedsAndTheLossCross) {
  SKIP_ON_GPU();
  for (const RealModel& model : {Mlp(), CharGpt(), Llama(), Digits()}) {
    SCOPED_TRACE(model.model.graph->name());
    const RealModel clipped = Clipped(model)[0].Clone();
    ExpectOnlyFeedsAndTheLossCross(*SessionOn(clipped, Cuda()), clipped);
  }
}

TEST_F(CudaTraining, OfAnMlp) { CompareClipped(Mlp()); }
TEST_F(CudaTraining, OfACharacterGpt) { CompareClipped(CharGpt()); }
TEST_F(CudaTraining, OfALlama) { CompareClipped(Llama()); }
TEST_F(CudaTraining, OfAnMlpInHalves) { CompareHalves(Mlp()); }
TEST_F(CudaTraining, OfACharacterGptInHalves) { CompareHalves(CharGpt()); }
TEST_F(CudaTraining, OfALlamaInHalves) { CompareHalves(Llama()); }
// Heads of 8 elements: two attentions and their gradients in each of two updates, twice, in two
// types.
TEST_F(CudaTraining, OfAWiderGptByCudnn) {
  CompareHalves(CharGptOf(8));
  if (!OnGpu()) {
    EXPECT_EQ(Operations("cudnnBackendExecute"), 32u);
  }
}
// Convolutions, batch norms and max pools. With SGD: a bias before a batch norm has no gradient but
// noise.
TEST_F(CudaTraining, OfTheDigits) {
  RealModel model = DigitsWithDropout();
  model.options.step.optimizer = Sgd{.learning_rate = 0.1, .momentum = 0.9};
  Compare(model, 6);
  for (const DType precision : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    model.options.step.precision = precision;
    EXPECT_THAT(OnHost(model), ::testing::IsEmpty());
  }
}
// In bfloat16 another rounding takes another maximum: results differ by more than roundings.
TEST_F(CudaTraining, OfTheDigitsInFloat16) {
  RealModel model = Digits();
  model.options.step.optimizer = Sgd{.learning_rate = 0.1, .momentum = 0.9};
  model.options.step.precision = DType::kFloat16;
  Compare(model, kUpdates, 1e-2);
}

// Steps update them there, evaluations and checkpoints read them.
TEST_F(CudaTraining, RunningStatisticsAreOnTheDevice) {
  RealModel model = Digits();
  model.options.step.optimizer = Sgd{.learning_rate = 0.1, .momentum = 0.9};
  auto there = SessionOn(model, Cuda()), here = SessionOn(model, Cpu()),
       restored = SessionOn(model, Cpu());
  for (const NamedValues& batch : model.batches) {
    ASSERT_TRUE(there->Step(batch).ok());
    ASSERT_TRUE(here->Step(batch).ok());
  }
  TemporaryFolder folder;
  ASSERT_TRUE(there->Save(folder.path("state")).ok());
  ASSERT_TRUE(restored->Restore(folder.path("state")).ok());
  const double wanted = here->Evaluate(model.batches[0])->loss;
  for (TrainingSession* session : {there.get(), restored.get()})
    EXPECT_NEAR(session->Evaluate(model.batches[0])->loss, wanted, 1e-5 * wanted);
}

TEST_F(CudaTraining, EachOptimizerWithAKernel) {
  for (const Optimizer& optimizer :
       {Optimizer(Sgd{.learning_rate = 0.1, .weight_decay = 0.01}),
        Optimizer(Sgd{.learning_rate = 0.05, .momentum = 0.9, .dampening = 0.1}),
        Optimizer(Sgd{.learning_rate = 0.05, .momentum = 0.9, .nesterov = true, .maximize = true}),
        Optimizer(Adam{.learning_rate = 2e-3, .epsilon = 1e-4, .weight_decay = 0.01}),
        Optimizer(AdamW{.learning_rate = 2e-3, .epsilon = 1e-4, .amsgrad = true}),
        Optimizer(Lion{.learning_rate = 1e-3, .weight_decay = 0.1}),
        Optimizer(Rmsprop{.learning_rate = 1e-3, .epsilon = 1e-4}),
        Optimizer(Rmsprop{.learning_rate = 1e-3, .epsilon = 1e-2, .centered = true}),
        Optimizer(Rmsprop{.learning_rate = 1e-3, .epsilon = 1e-4, .momentum = 0.9}),
        Optimizer(
            Rmsprop{.learning_rate = 1e-3, .epsilon = 1e-2, .momentum = 0.9, .centered = true})}) {
    SCOPED_TRACE("optimizer " + std::to_string(optimizer.index()));
    RealModel model = Mlp();
    model.options.step.optimizer = optimizer;
    EXPECT_THAT(OnHost(model), ::testing::IsEmpty());
    Compare(model, 3);
  }
}

// Two steps: the second has the scalars that the first has set.
TEST_F(CudaTraining, EachOptimizerOfTheOthers) {
  for (const Optimizer& optimizer :
       {Optimizer(NAdam{.epsilon = 1e-4, .decoupled_weight_decay = true, .float64_state = true}),
        Optimizer(RAdam{.epsilon = 1e-4, .weight_decay = 0.01}), Optimizer(Adamax{.epsilon = 1e-4}),
        Optimizer(Adagrad{.lr_decay = 0.1, .epsilon = 1e-4}), Optimizer(Adadelta{.epsilon = 1e-4}),
        Optimizer(Asgd{.t0 = 0, .weight_decay = 0.01}), Optimizer(Rprop{}), Optimizer(Lamb{}),
        Optimizer(Adafactor{}), Optimizer(Muon{.learning_rate = 5e-3, .ns_steps = 1})}) {
    SCOPED_TRACE("optimizer " + std::to_string(optimizer.index()));
    const bool is_muon = std::holds_alternative<Muon>(optimizer);
    RealModel model = Mlp();
    model.options.step.optimizer = optimizer;
    if (is_muon) model.options.step.frozen = {"b0", "b1", "b2"};  // it updates matrices only
    const Trained wanted = TrainOn(model, Cpu(), 2);
    auto session = SessionOn(model, Cuda());
    // Muon rounds to bfloat16 between its products, and the last place of a gradient may decide
    // how. More of its steps would turn that noise into directions, as six examples give few.
    const double tolerance = is_muon ? 1e-4 : 1e-5;
    ExpectClose(ExpectOnlyFeedsAndTheLossCross(*session, model), wanted.losses, tolerance, "loss");
    Values parameters;
    ReadParameters(*session, &parameters);
    ExpectClose(parameters, wanted.parameters, tolerance, "parameter");
    EXPECT_THAT(OnHost(*session, model), ::testing::IsEmpty());
  }
}

TEST_F(CudaTraining, AccumulatesOnTheDevice) {
  for (const CommitMode commit : {CommitMode::kLate, CommitMode::kEagerConsume}) {
    RealModel model = Mlp();
    model.options.step.accumulation_steps = 2;
    model.options.step.commit = commit;
    model.options.step.optimizer = Sgd{.learning_rate = 0.1, .momentum = 0.9};
    EXPECT_THAT(OnHost(model), ::testing::IsEmpty());
    Compare(model, 4);
  }
}

// The first updates overflow and do not happen; then the scale fits.
TEST_F(CudaTraining, ScalesTheLossOnTheDevice) {
  RealModel model = Mlp();
  model.options.step.optimizer = Sgd{.learning_rate = 0.1, .momentum = 0.9};
  model.options.step.precision = DType::kFloat16;
  model.options.step.loss_scaling.initial_scale = 0x1p26f;
  EXPECT_THAT(OnHost(model), ::testing::IsEmpty());
  auto here = SessionOn(model, Cpu()), there = SessionOn(model, Cuda());
  for (int i = 0; i < 14; ++i) {
    const double wanted = here->Step(model.batches[i % 2]).value();
    EXPECT_NEAR(there->Step(model.batches[i % 2]).value(), wanted, 2e-3 * wanted);
  }
  EXPECT_EQ(there->progress().updates, here->progress().updates);
  EXPECT_EQ(there->progress().loss_scale(), here->progress().loss_scale());
  EXPECT_GT(there->progress().updates, 0);
  EXPECT_LT(there->progress().updates, 14);
}

TEST_F(CudaTraining, RefusedStepsChangeNothing) {
  RealModel model = Clipped(Mlp())[0].Clone();
  model.options.step.refuse_nonfinite = true;
  EXPECT_THAT(OnHost(model), ::testing::IsEmpty());
  auto session = SessionOn(model, Cuda());
  ASSERT_TRUE(session->Step(model.batches[0]).ok());
  Values before, after;
  ReadParameters(*session, &before);
  NamedValues spoilt = model.batches[1];
  Tensor x = spoilt.at("x").tensor().Clone().value();
  x.data<float>()[3] = NAN;
  spoilt["x"] = x;
  const Status status = session->Step(spoilt).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("the norm of the gradients is not finite"));
  ReadParameters(*session, &after);
  EXPECT_TRUE(SameBits(before, after));
  ASSERT_TRUE(session->Step(model.batches[1]).ok());
}

// A wrong label shows when the loss comes back, after the updates.
TEST_F(CudaTraining, StepsWithWrongLabelsAreUndone) {
  const RealModel model = Clipped(Mlp())[0].Clone();
  auto session = SessionOn(model, Cuda());
  Values before, after;
  ReadParameters(*session, &before);
  NamedValues wrong = model.batches[0];
  for (auto& [name, value] : wrong) {
    if (value.tensor().dtype() != DType::kInt64) continue;
    Tensor labels = value.tensor().Clone().value();
    labels.data<int64_t>()[0] = 99;
    value = labels;
  }
  EXPECT_EQ(session->Step(wrong).status().code(), StatusCode::kInvalidArgument);
  ReadParameters(*session, &after);
  EXPECT_TRUE(SameBits(before, after));
}

// Stopped before each node, and ended: by itself, and from a file by another session.
TEST_F(CudaTraining, StepsStopAnywhere) {
  const RealModel model = Clipped(CharGpt())[0].Clone();
  const Trained wanted = TrainOn(model, Cuda(Unchecked()));
  auto first = SessionOn(model, Cuda(Unchecked())), second = SessionOn(model, Cuda(Unchecked()));
  TemporaryFolder folder;
  ASSERT_TRUE(first->Save(folder.path("initial")).ok());
  const size_t steps = first->runs().Plan(model.batches[0]).value()->steps().size();
  const size_t every = std::getenv("CAESURA_LONG") != nullptr ? 1 : 9;
  for (size_t at = 0; at < steps; at += at + 6 < steps ? every : 1) {  // all of the updates
    SCOPED_TRACE("stopped before step " + std::to_string(at) + " of " + std::to_string(steps));
    ASSERT_TRUE(first->Restore(folder.path("initial")).ok());
    first->control().SuspendAt(static_cast<int>(at));
    ASSERT_EQ(first->Step(model.batches[0]).status().code(), StatusCode::kSuspended);
    ASSERT_TRUE(first->Save(folder.path("step")).ok());
    const auto restored = second->Restore(folder.path("step"));
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    for (TrainingSession* session : {first.get(), second.get()}) {
      Trained got;
      for (const double loss :
           {session->ResumeStep().value(), session->Step(model.batches[1]).value()})
        got.losses.push_back(Tensor::Of<double>(Shape{}, {loss}));
      ReadParameters(*session, &got.parameters);
      EXPECT_TRUE(got == wanted);
    }
  }
}

TEST_F(CudaTraining, CheckpointsAndParameters) {
  const RealModel model = Clipped(Llama())[0].Clone();
  auto first = SessionOn(model, Cuda()), second = SessionOn(model, Cuda());
  TemporaryFolder folder;
  ASSERT_TRUE(first->Step(model.batches[0]).ok());
  ASSERT_TRUE(first->Save(folder.path("state")).ok());
  ASSERT_TRUE(second->Restore(folder.path("state")).ok());
  const std::string name = first->parameters().Names()[0];
  Tensor value = first->parameters().Get(name).value();
  value.data<float>()[0] += 0.5f;
  for (TrainingSession* session : {first.get(), second.get()}) {
    ASSERT_TRUE(session->parameters().Set(name, value).ok());
    EXPECT_TRUE(SameBits(session->parameters().Get(name).value(), value));
  }
  EXPECT_EQ(first->Step(model.batches[1]).value(), second->Step(model.batches[1]).value());
  EXPECT_EQ(first->Evaluate(model.batches[0])->loss, second->Evaluate(model.batches[0])->loss);
  auto cpu = SessionOn(model, Cpu());
  ASSERT_TRUE(cpu->Restore(folder.path("state")).ok());
  ASSERT_TRUE(cpu->parameters().Set(name, value).ok());
  ASSERT_TRUE(cpu->Step(model.batches[1]).ok());
  Values got, wanted;
  ReadParameters(*first, &got);
  ReadParameters(*cpu, &wanted);
  ExpectClose(got, wanted, 1e-5, "parameter");
}

// Neither the order of a block's threads nor that of the blocks changes a bit: sums have one order.
TEST_F(CudaTraining, AnyOrderOfThreadsGivesTheSameBits) {
  SKIP_ON_GPU();
  RealModel model = CharGpt();
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    model.options.step.precision = precision;
    const Trained wanted = TrainOn(model, Cuda(Unchecked()));
    for (int order = STANDIN_LANES_FORWARD; order <= STANDIN_LANES_ANY_WARP_AHEAD; ++order) {
      for (uint64_t seed = 2; seed < 7; ++seed) {
        SCOPED_TRACE("order " + std::to_string(order) + ", seed " + std::to_string(seed));
        Call<decltype(standin_set_lane_order)>("standin_set_lane_order")(order);
        Call<decltype(standin_set_seed)>("standin_set_seed")(seed);
        EXPECT_TRUE(TrainOn(model, Cuda(Unchecked())) == wanted);
      }
    }
  }
}

// An error after which the context is of no use takes the device's memory with it: no step goes on
// with other parameters. A new session goes on from a checkpoint.
TEST_F(CudaTraining, ALostContextIsToldAndLosesTheParameters) {
  SKIP_ON_GPU();
  const RealModel model = Clipped(Mlp())[0].Clone();
  TemporaryFolder folder;
  for (const int kernel : {1, 12}) {
    RealModel own = model.Clone();
    own.options.providers = Cuda(Unchecked());
    auto session = SessionOf(own);
    ASSERT_TRUE(session->Step(model.batches[0]).ok());
    ASSERT_TRUE(session->Save(folder.path("state")).ok());
    Call<decltype(standin_fail_operation)>("standin_fail_operation")("kernel ", kernel,
                                                                     CUDA_ERROR_ILLEGAL_ADDRESS);
    const Status status = session->Step(model.batches[1]).status();
    EXPECT_EQ(status.code(), StatusCode::kProviderFailure);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("has lost the device's context"));
    EXPECT_FALSE(session->fallback().record());
    EXPECT_FALSE(session->Step(model.batches[1]).ok());
    EXPECT_FALSE(session->Save(folder.path("nothing")).ok());
    auto cpu = SessionOn(model, Cpu());
    ASSERT_TRUE(cpu->Restore(folder.path("state")).ok());
    EXPECT_TRUE(cpu->Step(model.batches[1]).ok());
    session.reset();
    Call<decltype(standin_reset)>("standin_reset")(seed_);
  }
}

// A call of the driver that fails, whichever it is: the step has changed nothing, and is done again
// on the CPU. Every fifth call; with CAESURA_LONG=1 every one.
TEST_F(CudaTraining, AFailureAtAnyCallEndsOnTheCpu) {
  SKIP_ON_GPU();
  RealModel model = CharGpt();
  model.options.step.optimizer = Sgd{.learning_rate = 0.1, .momentum = 0.9};
  model.options.step.groups = {
      {.names = {"token"},
       .learning_rate_scale = 0.5,
       .weight_decay = 0.0,
       .optimizer = std::nullopt}};  // two updates: one may fail after the other
  const Trained wanted = TrainOn(model, Cpu());
  const int every = std::getenv("CAESURA_LONG") != nullptr ? 1 : 5;
  for (const char* call :
       {"cuLaunchKernel", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuMemAllocFromPoolAsync"}) {
    bool fails = true;
    int ended_on_cpu = 0;
    for (int n = 1; fails; n += every) {
      SCOPED_TRACE(std::string(call) + ", call " + std::to_string(n));
      RealModel own = model.Clone();
      own.options.providers = {Provider(Unchecked()), TrainingCpu()};
      auto session = TrainingSession::Create(std::move(own.model), own.options);
      ASSERT_TRUE(session.ok()) << session.status().ToString();
      Call<decltype(standin_fail)>("standin_fail")(call, n, CUDA_ERROR_OUT_OF_MEMORY);
      ::testing::internal::CaptureStderr();
      Values losses, parameters;
      for (const NamedValues& batch : own.batches) {
        auto loss = (*session)->Step(batch);
        ASSERT_TRUE(loss.ok()) << loss.status().ToString();
        losses.push_back(Tensor::Of<double>(Shape{}, {*loss}));
      }
      ::testing::internal::GetCapturedStderr();
      // A failure that has not come in the steps may meet a read, which is then done again.
      while (parameters.size() != wanted.parameters.size()) {
        parameters.clear();
        for (const std::string& name : (*session)->parameters().Names()) {
          const auto parameter = (*session)->parameters().Get(name);
          if (parameter.ok()) parameters.push_back(parameter->Clone().value());
        }
      }
      ExpectClose(losses, wanted.losses, 1e-5, "loss");
      ExpectClose(parameters, wanted.parameters, 1e-5, "parameter");
      fails = (*session)->fallback().record().has_value();
      ended_on_cpu += fails;
    }
    std::printf("%s: %d steps ended on the CPU\n", call, ended_on_cpu);
    EXPECT_GT(ended_on_cpu, 0) << call;
    EXPECT_THAT(Reports(), ::testing::IsEmpty());
    Call<decltype(standin_reset)>("standin_reset")(seed_);  // forgets a failure that has not come
  }
}

}  // namespace
}  // namespace caesura::testing
