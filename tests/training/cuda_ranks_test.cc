// SPDX-License-Identifier: Apache-2.0
// Training sessions that are ranks with a GPU each: gradients are summed in the GPUs' memory, and
// the numbers are those of ranks on CPUs.
#include <gmock/gmock.h>

#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "tests/core/providers/cuda/gpu_ranks.h"
#include "tests/training/rank_heads.h"
#include "tests/training/rank_session.h"

namespace caesura::testing {
namespace {

constexpr int kRanks = 2, kSteps = 3;

class CudaRanks : public GpuRanks {
 protected:
  static RealModel Clipped(const NamedModel& model) {
    RealModel real = model.make();
    real.options.step.optimizer = Sgd{.learning_rate = 0.05, .momentum = 0.9};
    real.options.step.clip_norm = 0.5;
    return real;
  }
  static ProviderList ProvidersOf(const CudaOptions& options) {
    return {Provider(options), TrainingCpu()};
  }

  // Parameters after some steps; the same bits on all ranks.
  static Trained Train(TrainingSession& session, const NamedModel& model, const Communicator& c) {
    Trained out;
    for (int i = 0; i < kSteps; ++i) {
      const Result<double> loss = session.Step(PartOf(model.batch(100 + i), c));
      EXPECT_TRUE(loss.ok()) << loss.status().ToString();
      if (!loss.ok()) return out;
      out.losses.push_back(Tensor::Of<double>(Shape{}, {*loss}));
    }
    out.parameters = ParametersOf(session);
    return out;
  }

  static void ExpectClose(const Values& got, const Values& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const auto a = got[i].tensor().ToVector<double>(), b = want[i].tensor().ToVector<double>();
      for (size_t e = 0; e < a.size(); ++e)
        ASSERT_NEAR(a[e], b[e], 1e-5 * std::max(1.0, std::abs(b[e]))) << i << ", element " << e;
    }
  }
};

TEST_F(CudaRanks, SumGradientsInTheirMemory) {
  for (const NamedModel& model : {kModels[0], kModels[1], kModels[2]}) {
    SCOPED_TRACE(model.name);
    const RealModel real = Clipped(model);
    std::vector<Trained> on_cpu(kRanks), on_gpu(kRanks);
    RunRanks(kRanks,
             [&](Communicator& c) { on_cpu[c.rank()] = Train(*RankSession(real, c), model, c); });
    RunGpuRanks(kRanks, [&](Communicator& c, const CudaOptions& options) {
      const auto session = RankSession(real, c, [&](TrainingOptions& training) {
        training.providers = ProvidersOf(options);
        training.fallback = false;
      });
      on_gpu[c.rank()] = Train(*session, model, c);
      const auto plan = session->runs().Plan(PartOf(model.batch(100), c)).value();
      for (const PlanStep& step : plan->steps()) {
        const bool computes =
            step.kind == PlanStep::Kind::kCompute || step.kind == PlanStep::Kind::kDynamic;
        EXPECT_TRUE(!computes || !step.provider->device().is_host()) << step.node->op_type();
      }
    });
    EXPECT_TRUE(on_gpu[0] == on_gpu[1]) << "ranks differ";
    EXPECT_GT(Operations("nccl"), 0u);
    ExpectClose(on_gpu[0].losses, on_cpu[0].losses);
    ExpectClose(on_gpu[0].parameters, on_cpu[0].parameters);
  }
}

// Rank 0 trains head a, rank 1 head b, and no rank head c.
TEST_F(CudaRanks, MayUseOtherParameters) {
  for (const bool adam : {false, true}) {
    using Tensors = std::map<std::string, Tensor>;
    const auto train = [&](Communicator& c, const ProviderList& providers) {
      const auto session = HeadSession(c.rank() == 0 ? "a" : "b", c, [&](TrainingOptions& options) {
        options.providers = providers;
        options.fallback = false;
        options.step.clip_norm = 0.1;
        if (adam) options.step.optimizer = AdamW{.learning_rate = 1e-2};
      });
      std::vector<Tensors> states = {TensorsOf(*session)};
      for (int i = 0; i < kSteps; ++i) {
        session->ranks().set_uses({0, 1 + c.rank()});
        const Result<double> loss = session->Step(HeadBatch(10 * i + c.rank()));
        EXPECT_TRUE(loss.ok()) << loss.status().ToString();
        EXPECT_TRUE(session->ranks().used(1) && session->ranks().used(2));
        EXPECT_FALSE(session->ranks().used(3));
        states.push_back(TensorsOf(*session));
      }
      return states;
    };
    std::vector<std::vector<Tensors>> on_cpu(kRanks), on_gpu(kRanks);
    RunRanks(kRanks, [&](Communicator& c) { on_cpu[c.rank()] = train(c, {TrainingCpu()}); });
    RunGpuRanks(kRanks, [&](Communicator& c, const CudaOptions& options) {
      on_gpu[c.rank()] = train(c, ProvidersOf(options));
    });
    for (size_t i = 1; i < on_gpu[0].size(); ++i) {
      for (const auto& [name, value] : on_gpu[0][i]) {
        const Values got = {value}, before = {on_gpu[0][i - 1].at(name)};
        EXPECT_TRUE(SameBits(got, Values{on_gpu[1][i].at(name)})) << name << ": ranks differ";
        ExpectClose(got, Values{on_cpu[0][i].at(name)});
        const std::string of = name.substr(name.rfind('.') + 1);
        EXPECT_EQ(SameBits(got, before), of == "c") << name;
      }
    }
  }
}

// The ranks exchange host memory: gradients are copied there and back.
TEST_F(CudaRanks, WithoutNcclExchangeHostMemory) {
  Call<decltype(standin_set_devices)>("standin_set_devices")(kRanks);
  const RealModel real = Clipped(kModels[0]);
  std::vector<Trained> on_cpu(kRanks), on_gpu(kRanks);
  RunRanks(kRanks, [&](Communicator& c) {
    on_cpu[c.rank()] = Train(*RankSession(real, c), kModels[0], c);
  });
  RunRanks(kRanks, [&](Communicator& c) {
    const auto session = RankSession(real, c, [&](TrainingOptions& training) {
      training.providers = ProvidersOf(OptionsOfRank(c.rank()));
      training.fallback = false;
    });
    on_gpu[c.rank()] = Train(*session, kModels[0], c);
  });
  EXPECT_TRUE(on_gpu[0] == on_gpu[1]) << "ranks differ";
  ExpectClose(on_gpu[0].parameters, on_cpu[0].parameters);
}

TEST_F(CudaRanks, TheGpuOfTheCommunicatorMustRunNodes) {
  RunGpuRanks(1 + 1, [&](Communicator& c, const CudaOptions&) {
    RealModel real = Clipped(kModels[0]);
    real.options.ranks.communicator = std::shared_ptr<Communicator>(&c, [](Communicator*) {});
    const Status status = TrainingSession::Create(std::move(real.model), real.options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("the communicator 'nccl' exchanges the "
                                                       "memory of cuda:" +
                                                       std::to_string(c.rank())));
  });
}

// A rank that is lost before the agreement: nothing has changed on the other.
TEST_F(CudaRanks, ALostRankChangesNothing) {
  const NamedModel& model = kModels[0];
  RunGpuRanks(kRanks, [&](Communicator& c, const CudaOptions& options) {
    const auto session = RankSession(Clipped(model), c, [&](TrainingOptions& training) {
      training.providers = ProvidersOf(options);
      training.fallback = false;
      // Longer than one rank waits for the other's first plan, under sanitizers too.
      training.ranks.timeout = std::chrono::seconds(c.rank() == 0 ? 3 : 60);
    });
    ASSERT_TRUE(session->Step(PartOf(model.batch(100), c)).ok());
    const Values before = ParametersOf(*session);
    if (c.rank() == 1) return;
    const Status status = session->Step(PartOf(model.batch(101), c)).status();
    EXPECT_EQ(status.code(), StatusCode::kRankFailure) << status.ToString();
    EXPECT_EQ(session->parameters().lost(), std::nullopt);
    EXPECT_TRUE(SameBits(ParametersOf(*session), before));
  });
}

}  // namespace
}  // namespace caesura::testing
