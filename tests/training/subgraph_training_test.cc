// SPDX-License-Identifier: Apache-2.0
// Training with a provider that compiles parts of the forward: the losses and parameters of the
// CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/providers/compiled_subgraph.h"
#include "tests/core/plugin/test_provider_fixture.h"
#include "tests/training/real_step.h"

namespace caesura::testing {
namespace {

ProviderList InFront(std::shared_ptr<const ExecutionProvider> provider) {
  return {std::move(provider), TrainingCpu()};
}

struct History {
  std::vector<double> losses;
  std::vector<float> parameters;
  int forward_parts = 0, other_parts = 0;
};

History Train(const RealModel& given, ProviderList providers) {
  RealModel real = given.Clone();
  History out;
  if (!providers.empty()) real.options.providers = std::move(providers);
  auto session = TrainingSession::Create(real.model.Clone(), real.options);
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  if (!session.ok()) return out;
  for (const auto& node : (*session)->runs().step_graph().nodes()) {
    if (!node->Is(kCompiledSubgraphOp, kCaesuraDomain)) continue;
    ++(node->phase() == Phase::kForward ? out.forward_parts : out.other_parts);
  }
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (const NamedValues& batch : real.batches) {
      auto loss = (*session)->Step(batch);
      EXPECT_TRUE(loss.ok()) << loss.status().ToString();
      out.losses.push_back(loss.ok() ? *loss : 0);
    }
  }
  out.losses.push_back((*session)->Evaluate(real.batches[0]).value().loss);
  for (const std::string& name : (*session)->parameters().Names()) {
    const std::vector<float> values = (*session)->parameters().Get(name).value().ToVector<float>();
    out.parameters.insert(out.parameters.end(), values.begin(), values.end());
  }
  return out;
}

// Other kernels round otherwise, and six updates of AdamW pass that on: a relative 1e-4 of the
// loss, 2e-3 of a parameter, which is the learning rate where a gradient is near zero.
void ExpectClose(const History& got, const History& want) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], 1e-4 * std::abs(want.losses[i])) << "loss " << i;
  }
  ASSERT_EQ(got.parameters.size(), want.parameters.size());
  for (size_t i = 0; i < want.parameters.size(); ++i) {
    ASSERT_NEAR(got.parameters[i], want.parameters[i], 2e-3) << "parameter element " << i;
  }
}

TEST(SubgraphTraining, PartsOfTheForwardAlone) {
  const RealModel real = Digits();
  const History cpu = Train(real, {});
  EXPECT_EQ(cpu.forward_parts, 0);
  const History parts = Train(real, InFront(TryTestProvider().value()));
  EXPECT_GT(parts.forward_parts, 0);
  EXPECT_EQ(parts.other_parts, 0);
  ExpectClose(parts, cpu);
}

TEST(SubgraphTraining, PartsOnADevice) {
  const RealModel real = Digits();
  const History parts = Train(real, InFront(TryTestProvider({}, "FarExecutionProvider").value()));
  EXPECT_GT(parts.forward_parts, 0);
  ExpectClose(parts, Train(real, {}));
}

// OpenVINO takes what it can of the forward of both examples. Updated by SGD: AdamW's updates are
// as large where a gradient is but rounding, and the sign of that is another one on each chip.
TEST(SubgraphTraining, OpenVinoInTheExamples) {
  for (RealModel (*make)() : {Digits, CharGpt}) {
    RealModel real = make();
    real.options.step.optimizer = Sgd{.learning_rate = 0.05};
    auto provider = ProviderByName("OpenVINOExecutionProvider");
    if (provider.status().code() == StatusCode::kNotFound) GTEST_SKIP() << "built without OpenVINO";
    ASSERT_TRUE(provider.ok()) << provider.status().ToString();
    const History parts = Train(real, InFront(*provider));
    EXPECT_GT(parts.forward_parts, 0);
    EXPECT_EQ(parts.other_parts, 0);
    ExpectClose(parts, Train(real, {}));
  }
}

// Parameters are inputs of the parts, whatever they were when the part was compiled; frozen ones
// are constants in it.
TEST(SubgraphTraining, TrainedParametersAreNotBakedIn) {
  RealModel real =
      MakeRealModel(R"(net (float[batch, 3] x, float[3] w, float[3] frozen) => (float[batch, 3] y) {
      a = Add (x, w) b = Add (a, frozen) r = Relu (b) y = Add (r, w) })",
                    1);
  real.options.step.loss = Loss::MeanSquaredError("target");
  real.options.step.optimizer = Sgd{.learning_rate = 0.5};
  real.options.step.frozen = {"frozen"};
  for (uint32_t i = 0; i < kUpdates; ++i) {
    real.batches.push_back({{"x", Ramp(Shape{2, 3})}, {"target", Ramp(Shape{2, 3}, 1.0f)}});
  }
  const History cpu = Train(real, {}), parts = Train(real, InFront(TryTestProvider().value()));
  EXPECT_NE(cpu.losses[0], cpu.losses[1]);
  EXPECT_EQ(parts.forward_parts, 1);
  ExpectClose(parts, cpu);

  real.options.providers = InFront(TryTestProvider().value());
  auto session = TrainingSession::Create(real.model.Clone(), real.options).value();
  for (const auto& node : session->runs().step_graph().nodes()) {
    if (!node->Is(kCompiledSubgraphOp, kCaesuraDomain)) continue;
    const Graph& body = **node->FindAttr<std::shared_ptr<Graph>>(kCompiledBody);
    EXPECT_TRUE(body.IsGraphInput(body.FindValue("w")));
    EXPECT_NE(body.Initializer(body.FindValue("frozen")), nullptr);
  }
}

TEST(SubgraphTraining, AFailingPartFailsTheStepAndChangesNothing) {
  RealModel real = Digits();
  real.options.fallback = false;
  real.options.providers = InFront(TryTestProvider({{"fail", "0"}, {"garbage", "1"}}).value());
  auto session = TrainingSession::Create(real.model.Clone(), real.options).value();
  const std::vector<float> before = session->parameters().Get("head").value().ToVector<float>();
  const Status failed = session->Step(real.batches[0]).status();
  EXPECT_EQ(failed.code(), StatusCode::kProviderFailure) << failed.ToString();
  EXPECT_EQ(session->parameters().Get("head").value().ToVector<float>(), before);
  const double loss = session->Step(real.batches[0]).value();
  EXPECT_NEAR(loss, Train(real, {TrainingCpu()}).losses[0], 1e-4);
}

}  // namespace
}  // namespace caesura::testing
