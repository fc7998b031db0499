// SPDX-License-Identifier: Apache-2.0
// Whole training steps of the example models with the CUDA provider on its stand-ins: the CPU's
// losses and parameters, and the same bits from run to run.
#include <array>
#include <cstdlib>
#include <set>

#include "tests/core/providers/cuda/standin_cuda.h"
#include "tests/training/real_step.h"

namespace caesura::testing {
namespace {

constexpr int kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY

class CudaTraining : public StandinCuda {
 protected:
  // Losses and parameters of two updates.
  static Trained TrainOn(const RealModel& model, ProviderList providers) {
    RealModel own = model.Clone();
    own.options.providers = std::move(providers);
    own.options.fallback = false;
    auto session = TrainingSession::Create(std::move(own.model), own.options);
    EXPECT_TRUE(session.ok()) << session.status().ToString();
    Trained out;
    if (!session.ok()) return out;
    for (const NamedValues& batch : own.batches) {
      auto loss = (*session)->Step(batch);
      EXPECT_TRUE(loss.ok()) << loss.status().ToString();
      if (!loss.ok()) return out;
      out.losses.push_back(Tensor::Of<double>(Shape{}, {*loss}));
    }
    for (const std::string& name : (*session)->ParameterNames())
      out.parameters.push_back((*session)->Parameter(name)->Clone().value());
    return out;
  }

  void ExpectClose(const Values& got, const Values& wanted, double tolerance, const char* what) {
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const auto a = got[i].tensor().ToVector<double>(), b = wanted[i].tensor().ToVector<double>();
      for (size_t e = 0; e < a.size(); ++e)
        ASSERT_NEAR(a[e], b[e], tolerance * std::max(1.0, std::abs(b[e])))
            << what << " " << i << ", element " << e;
    }
  }

  // With SGD: AdamW makes steps of full size out of gradients that are rounding noise, such as that
  // of a bias before a batch norm.
  void Compare(RealModel model, double tolerance = 1e-5) {
    model.options.step.optimizer = Sgd{.learning_rate = 0.1, .momentum = 0.9};
    const Trained wanted = TrainOn(model, {TrainingCpu()});
    const Trained got = TrainOn(model, {Provider(), TrainingCpu()});
    ExpectClose(got.losses, wanted.losses, tolerance, "loss");
    ExpectClose(got.parameters, wanted.parameters, tolerance, "parameter");
    EXPECT_TRUE(TrainOn(model, {Provider(), TrainingCpu()}) == got) << "other bits in another run";
  }
  // Products and attention of halves: each rounds its results, to 2^-9 of them in bfloat16, after
  // sums in another order.
  void CompareHalves(RealModel model) {
    for (const DType precision : {DType::kBFloat16, DType::kFloat16}) {
      SCOPED_TRACE(DTypeName(precision));
      model.options.step.precision = precision;
      Compare(model.Clone(), 1e-2);
    }
  }

  // The ops of a step that run on the host.
  static std::set<std::string> OnHost(const RealModel& model) {
    RealModel own = model.Clone();
    own.options.providers = {Provider(), TrainingCpu()};
    auto session = TrainingSession::Create(std::move(own.model), own.options);
    EXPECT_TRUE(session.ok()) << session.status().ToString();
    auto plan = (*session)->StepPlan(own.batches[0]);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    std::set<std::string> out;
    if (!plan.ok()) return out;
    for (const Step& step : (*plan)->steps()) {
      const bool computes = step.kind == Step::Kind::kCompute || step.kind == Step::Kind::kDynamic;
      if (computes && step.provider->device().is_host()) {
        const std::string ops = step.node->Attr<std::string>("ops", "");
        out.insert(step.node->op_type() + (ops.empty() ? "" : " of " + ops));
      }
    }
    return out;
  }
};

// Parameters live on the host, and so do their updates, with the scalars that undo a scaled loss.
TEST_F(CudaTraining, AllButUpdatesIsOnTheDevice) {
  const std::set<std::string> updates = {"SgdUpdate", "AdamWUpdate", "GlobalNorm", "ClipScale"};
  for (RealModel& model : std::array{Mlp(), CharGpt(), Llama()}) {
    for (const DType precision : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      SCOPED_TRACE(model.model.graph->name() + " in " + DTypeName(precision));
      model.options.step.precision = precision;
      std::set<std::string> expected = updates;
      if (precision == DType::kFloat16) expected.insert({"Cast", "Mul", "Reciprocal"});
      for (const std::string& op : OnHost(model)) EXPECT_EQ(expected.count(op), 1u) << op;
    }
  }
}

TEST_F(CudaTraining, OfAnMlp) { Compare(Mlp()); }
TEST_F(CudaTraining, OfACharacterGpt) { Compare(CharGpt()); }
TEST_F(CudaTraining, OfALlama) { Compare(Llama()); }
TEST_F(CudaTraining, OfAnMlpInHalves) { CompareHalves(Mlp()); }
TEST_F(CudaTraining, OfACharacterGptInHalves) { CompareHalves(CharGpt()); }
// Heads of 8 elements: two attentions and their gradients in each of two updates, twice, in two
// types.
TEST_F(CudaTraining, OfAWiderGptByCudnn) {
  CompareHalves(CharGptOf(8));
  EXPECT_EQ(Operations("cudnnBackendExecute"), 32u);
}
TEST_F(CudaTraining, OfALlamaInHalves) { CompareHalves(Llama()); }
// Convolutions run by cuDNN, pools and batch norms on the host.
TEST_F(CudaTraining, OfTheDigits) { Compare(DigitsWithDropout()); }

// Neither the order of a block's threads nor that of the blocks changes a bit: sums have one order.
TEST_F(CudaTraining, AnyOrderOfThreadsGivesTheSameBits) {
  RealModel model = CharGpt();
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    model.options.step.precision = precision;
    const Trained wanted = TrainOn(model, {Provider(Unchecked()), TrainingCpu()});
    for (int order = STANDIN_LANES_FORWARD; order <= STANDIN_LANES_ANY_WARP_AHEAD; ++order) {
      for (uint64_t seed = 2; seed < 7; ++seed) {
        SCOPED_TRACE("order " + std::to_string(order) + ", seed " + std::to_string(seed));
        Call<decltype(standin_set_lane_order)>("standin_set_lane_order")(order);
        Call<decltype(standin_set_seed)>("standin_set_seed")(seed);
        EXPECT_TRUE(TrainOn(model, {Provider(Unchecked()), TrainingCpu()}) == wanted);
      }
    }
  }
}

// A call of the driver that fails, whichever it is: the step has changed nothing, and is done again
// on the CPU. Every fifth call; with CAESURA_LONG=1 every one.
TEST_F(CudaTraining, AFailureAtAnyCallEndsOnTheCpu) {
  RealModel model = CharGpt();
  model.options.step.optimizer = Sgd{.learning_rate = 0.1, .momentum = 0.9};
  const Trained wanted = TrainOn(model, {TrainingCpu()});
  const int every = std::getenv("CAESURA_LONG") != nullptr ? 1 : 5;
  for (const char* call : {"cuLaunchKernel", "cuMemcpyDtoHAsync", "cuMemAllocFromPoolAsync"}) {
    bool fails = true;
    int ended_on_cpu = 0;
    for (int n = 1; fails; n += every) {
      SCOPED_TRACE(std::string(call) + ", call " + std::to_string(n));
      RealModel own = model.Clone();
      own.options.providers = {Provider(Unchecked()), TrainingCpu()};
      auto session = TrainingSession::Create(std::move(own.model), own.options);
      ASSERT_TRUE(session.ok()) << session.status().ToString();
      Call<decltype(standin_fail)>("standin_fail")(call, n, kOutOfMemory);
      ::testing::internal::CaptureStderr();
      Values losses, parameters;
      for (const NamedValues& batch : own.batches) {
        auto loss = (*session)->Step(batch);
        ASSERT_TRUE(loss.ok()) << loss.status().ToString();
        losses.push_back(Tensor::Of<double>(Shape{}, {*loss}));
      }
      ::testing::internal::GetCapturedStderr();
      for (const std::string& name : (*session)->ParameterNames())
        parameters.push_back((*session)->Parameter(name)->Clone().value());
      ExpectClose(losses, wanted.losses, 1e-5, "loss");
      ExpectClose(parameters, wanted.parameters, 1e-5, "parameter");
      fails = (*session)->fallback_record().has_value();
      ended_on_cpu += fails;
      Call<decltype(standin_fail)>("standin_fail")(call, 1 << 30, 0);  // if it has not come
    }
    std::printf("%s: %d steps ended on the CPU\n", call, ended_on_cpu);
    EXPECT_GT(ended_on_cpu, 0) << call;
  }
}

}  // namespace
}  // namespace caesura::testing
