// SPDX-License-Identifier: Apache-2.0
// Sessions of the example models with the CUDA provider on its stand-ins.
#ifndef CAESURA_TESTS_TRAINING_CUDA_TRAINING_H_
#define CAESURA_TESTS_TRAINING_CUDA_TRAINING_H_

#include <cmath>
#include <set>

#include "tests/core/providers/cuda/standin_cuda.h"
#include "tests/training/real_step.h"

namespace caesura::testing {

class CudaTraining : public StandinCuda {
 protected:
  static std::unique_ptr<TrainingSession> SessionOn(const RealModel& model,
                                                    ProviderList providers) {
    RealModel own = model.Clone();
    own.options.providers = std::move(providers);
    own.options.fallback = false;
    return SessionOf(own);
  }
  static ProviderList Cpu() { return {TrainingCpu()}; }
  static ProviderList Cuda(const CudaOptions& options = Options()) {
    return {Provider(options), TrainingCpu()};
  }

  static void ReadParameters(const TrainingSession& session, Values* out) {
    for (const std::string& name : session.parameters().Names()) {
      const auto parameter = session.parameters().Get(name);
      ASSERT_TRUE(parameter.ok()) << parameter.status().ToString();
      out->push_back(parameter->Clone().value());
    }
  }

  // Losses and parameters of so many steps, on the batches in turns.
  static Trained TrainOn(const RealModel& model, ProviderList providers, int steps = kUpdates) {
    auto session = SessionOn(model, std::move(providers));
    Trained out;
    for (int i = 0; session != nullptr && i < steps; ++i) {
      auto loss = session->Step(model.batches[static_cast<size_t>(i) % model.batches.size()]);
      EXPECT_TRUE(loss.ok()) << loss.status().ToString();
      if (!loss.ok()) return out;
      out.losses.push_back(Tensor::Of<double>(Shape{}, {*loss}));
    }
    if (session != nullptr) ReadParameters(*session, &out.parameters);
    return out;
  }

  static void ExpectClose(const Values& got, const Values& wanted, double tolerance,
                          const char* what) {
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const auto a = got[i].tensor().ToVector<double>(), b = wanted[i].tensor().ToVector<double>();
      for (size_t e = 0; e < a.size(); ++e)
        ASSERT_NEAR(a[e], b[e], tolerance * std::max(1.0, std::abs(b[e])))
            << what << " " << i << ", element " << e;
    }
  }

  // Both optimizers, clipped. AdamW's epsilon is above the rounding noise of gradients that are
  // nothing else, such as that of a bias before a softmax: it would make steps of full size of
  // them.
  static std::vector<RealModel> Clipped(const RealModel& model) {
    std::vector<RealModel> out;
    for (const Optimizer& optimizer :
         {Optimizer(AdamW{.learning_rate = 2e-3, .epsilon = 1e-4, .weight_decay = 0.1}),
          Optimizer(Sgd{.learning_rate = 0.05, .momentum = 0.9})}) {
      out.push_back(model.Clone());
      out.back().options.step.optimizer = optimizer;
      out.back().options.step.clip_norm = 0.5;
    }
    return out;
  }

  static void Compare(const RealModel& model, int steps, double tolerance = 1e-5) {
    const Trained wanted = TrainOn(model, Cpu(), steps);
    const Trained got = TrainOn(model, Cuda(), steps);
    ExpectClose(got.losses, wanted.losses, tolerance, "loss");
    ExpectClose(got.parameters, wanted.parameters, tolerance, "parameter");
    EXPECT_TRUE(TrainOn(model, Cuda(), steps) == got) << "other bits in another run";
  }
  static void CompareClipped(const RealModel& model) {
    for (const RealModel& clipped : Clipped(model)) Compare(clipped, 20);
  }
  // Products and attention of halves: each rounds its results, to 2^-9 of them in bfloat16, after
  // sums in another order.
  static void CompareHalves(RealModel model) {
    model.options.step.optimizer = Sgd{.learning_rate = 0.1, .momentum = 0.9};
    for (const DType precision : {DType::kBFloat16, DType::kFloat16}) {
      SCOPED_TRACE(DTypeName(precision));
      model.options.step.precision = precision;
      Compare(model, kUpdates, 1e-2);
    }
  }

  // The ops of a step that run on the host.
  static std::set<std::string> OnHost(const RealModel& model) {
    return OnHost(*SessionOn(model, Cuda()), model);
  }
  static std::set<std::string> OnHost(TrainingSession& session, const RealModel& model) {
    auto plan = session.runs().Plan(model.batches[0]);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    std::set<std::string> out;
    if (!plan.ok()) return out;
    for (const PlanStep& step : (*plan)->steps()) {
      const bool computes =
          step.kind == PlanStep::Kind::kCompute || step.kind == PlanStep::Kind::kDynamic;
      if (computes && step.provider->device().is_host()) {
        const std::string ops = step.node->Attr<std::string>("ops", "");
        out.insert(step.node->op_type() + (ops.empty() ? "" : " of " + ops));
      }
    }
    return out;
  }
  // 0 on a GPU, where nobody counts.
  uint64_t Calls(const char* function) const {
    if (OnGpu()) return 0;
    return Call<decltype(standin_calls)>("standin_calls")(function);
  }
  // The losses of two steps, in the second of which input, target, learning rate and, where it is
  // read, the step go there; the loss comes back, the norm where gradients are clipped, and the
  // cell in which kernels report wrong values.
  Values ExpectOnlyFeedsAndTheLossCross(TrainingSession& session, const RealModel& model) const {
    Values losses;
    for (int i = 0; i < 2; ++i) {
      const uint64_t there = Calls("cuMemcpyHtoDAsync"), back = Calls("cuMemcpyDtoHAsync");
      losses.push_back(Tensor::Of<double>(Shape{}, {session.Step(model.batches[i]).value()}));
      if (i == 0 || OnGpu()) continue;
      EXPECT_LE(Calls("cuMemcpyHtoDAsync") - there, 4u);
      EXPECT_LE(Calls("cuMemcpyDtoHAsync") - back, model.options.step.clip_norm > 0 ? 3u : 2u);
    }
    return losses;
  }
};

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_TRAINING_CUDA_TRAINING_H_
