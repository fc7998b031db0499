// SPDX-License-Identifier: Apache-2.0
// What a session offers around a step: accumulation on the caller's word, kept outputs, export of
// chosen outputs.
#include "training/session/training_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/onnx/model_reader.h"
#include "core/plan/execution_plan.h"
#include "tests/temporary_folder.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

constexpr char kTwoOutputs[] = R"(<ir_version: 10, opset_import: ["": 21]>
net (float[N,2] x, float[N,2] shift) => (float[N,2] y, float[N,2] moved)
<float[2,2] w = {0.5, -0.25, 0.125, 1}> {
  y = MatMul (x, w)
  moved = Add (y, shift)
})";

std::unique_ptr<TrainingSession> Session(int accumulation_steps,
                                         std::vector<std::string> keep_outputs = {}) {
  TrainingOptions options;
  options.step.loss = Loss::MeanSquaredError("t");
  options.step.loss.prediction = "y";
  options.step.optimizer = Sgd{.learning_rate = 0.5};
  options.step.accumulation_steps = accumulation_steps;
  options.step.keep_outputs = std::move(keep_outputs);
  auto session = TrainingSession::Create(ParseModelText(kTwoOutputs).value(), options);
  EXPECT_TRUE(session.ok()) << session.status().message();
  return std::move(session).value();
}

NamedValues Batch(float base) {
  return {{"x", Tensor::Of<float>({2, 2}, {base, 1, -1, 2 * base})},
          {"shift", Tensor::Of<float>({2, 2}, {1, 1, 1, 1})},
          {"t", Tensor::Of<float>({2, 2}, {1, 0, 0, 1})}};
}

std::vector<float> Weights(const TrainingSession& session) {
  return session.parameters().Get("w").value().ToVector<float>();
}

TEST(TrainingSessionTest, TheCallerDecidesWhenToUpdate) {
  auto counted = Session(3), open = Session(0);
  for (int update = 0; update < 2; ++update) {
    const std::vector<float> before = Weights(*open);
    for (int i = 0; i < 3; ++i) {
      const double expected = counted->Step(Batch(1.0f + i)).value();
      EXPECT_EQ((i < 2 ? open->Accumulate(Batch(1.0f + i)) : open->Step(Batch(1.0f + i))).value(),
                expected);
      if (i < 2) {
        EXPECT_EQ(Weights(*open), before);
      }
    }
    EXPECT_EQ(open->progress().updates, update + 1);
    EXPECT_EQ(Weights(*open), Weights(*counted));
  }
  // Another number of micro-steps: none before the update.
  auto plain = Session(1);
  ASSERT_TRUE(plain->parameters().Set("w", open->parameters().Get("w").value()).ok());
  ASSERT_TRUE(plain->Step(Batch(4)).ok());
  ASSERT_TRUE(open->Step(Batch(4)).ok());
  EXPECT_EQ(Weights(*open), Weights(*plain));
}

TEST(TrainingSessionTest, AWindowThatIsOpenGoesOnAfterRestore) {
  testing::TemporaryFolder folder;
  auto first = Session(0), second = Session(0);
  ASSERT_TRUE(first->Accumulate(Batch(1)).ok());
  ASSERT_TRUE(first->Accumulate(Batch(2)).ok());
  ASSERT_TRUE(first->Save(folder.path("c")).ok());
  ASSERT_TRUE(second->Restore(folder.path("c")).ok());
  ASSERT_TRUE(first->Step(Batch(3)).ok());
  ASSERT_TRUE(second->Step(Batch(3)).ok());
  EXPECT_EQ(Weights(*second), Weights(*first));
}

TEST(TrainingSessionTest, AccumulateNeedsTheCallersWord) {
  const auto refused = Session(4)->Accumulate(Batch(1));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("accumulation_steps is 4"));
}

TEST(TrainingSessionTest, KeepsOutputs) {
  auto session = Session(1, {"moved", "y"});
  const auto expected =
      session
          ->Predict({{"x", Batch(1).find("x")->second}, {"shift", Batch(1).find("shift")->second}})
          .value();
  ASSERT_TRUE(session->Step(Batch(1)).ok());
  ASSERT_EQ(session->runs().kept_outputs().size(), 2u);
  EXPECT_EQ(session->runs().kept_outputs()[0].tensor().ToVector<float>(),
            expected[1].tensor().ToVector<float>());
  EXPECT_EQ(session->runs().kept_outputs()[1].tensor().ToVector<float>(),
            expected[0].tensor().ToVector<float>());

  TrainingOptions options;
  options.step.loss = Loss::MeanSquaredError("t");
  options.step.keep_outputs = {"y", "z", "q"};
  const auto refused = TrainingSession::Create(ParseModelText(kTwoOutputs).value(), options);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(),
              HasSubstr("no output 'z' 'q'; its outputs are 'y' 'moved'"));
}

TEST(TrainingSessionTest, TellsBytesBeforeAStep) {
  const auto session = Session(1);
  const size_t bytes = session->runs().StepBytes(Batch(1)).value();
  EXPECT_EQ(bytes, session->runs().Plan(Batch(1)).value()->arena_bytes());
  EXPECT_GE(bytes, 4 * sizeof(float));  // y's gradient
  const RankMemory memory = session->Memory();
  EXPECT_EQ(memory.parameters, 4 * sizeof(float));
  EXPECT_EQ(memory.optimizer_state, 0u);
  const StepMemory step = session->MemoryOf(Batch(1)).value();
  EXPECT_EQ(step.kept.parameters, memory.parameters);
  EXPECT_EQ(step.arena, bytes);
  size_t feeds = 0;
  for (const auto& [name, value] : Batch(1)) feeds += value.tensor().bytes();
  EXPECT_GE(step.peak, bytes + memory.parameters + feeds);
  EXPECT_LE(step.peak, bytes + memory.parameters + feeds + 128);  // scalars: loss, rate, step
  EXPECT_EQ(session->MemoryOf({}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session->runs().StepBytes({}).status().code(), StatusCode::kInvalidArgument);
}

TEST(TrainingSessionTest, ExportsChosenOutputs) {
  auto session = Session(1);
  ASSERT_TRUE(session->Step(Batch(1)).ok());
  const Model all = session->parameters().TrainedModel().value(),
              one = session->parameters().TrainedModel({"y"}).value();
  EXPECT_EQ(all.graph->outputs().size(), 2u);
  ASSERT_EQ(one.graph->outputs().size(), 1u);
  EXPECT_EQ(one.graph->nodes().size(), 1u);
  ASSERT_EQ(one.graph->inputs().size(), 1u);
  EXPECT_EQ(one.graph->inputs()[0]->name(), "x");
  EXPECT_FALSE(session->parameters().TrainedModel({"none"}).ok());
}

constexpr char kTwoLayers[] = R"(<ir_version: 10, opset_import: ["": 21]>
net (float[N,2] x) => (float[N,2] y)
<float[2,2] w = {0.5, -0.25, 0.125, 1}, float[2,2] v = {1, 0, 0, 1}> {
  h = MatMul (x, w)
  y = MatMul (h, v)
})";

TrainingOptions Frozen(std::vector<std::string> frozen) {
  TrainingOptions options;
  options.step.loss = Loss::MeanSquaredError("t");
  options.step.optimizer = Sgd{.learning_rate = 0.5};
  options.step.frozen = std::move(frozen);
  return options;
}

TEST(TrainingSessionTest, FrozenParametersAreReadAndSet) {
  testing::TemporaryFolder folder;
  const NamedValues feeds = {{"x", Tensor::Of<float>({1, 2}, {1, 2})},
                             {"t", Tensor::Of<float>({1, 2}, {0, 0})}};
  auto session = TrainingSession::Create(ParseModelText(kTwoLayers).value(), Frozen({"w"})).value();
  EXPECT_EQ(session->parameters().Names(), std::vector<std::string>{"v"});
  EXPECT_EQ(session->parameters().FrozenNames(), std::vector<std::string>{"w"});
  EXPECT_EQ(session->parameters().Get("w")->ToVector<float>(),
            (std::vector<float>{0.5, -0.25, 0.125, 1}));
  const Tensor identity = Tensor::Of<float>({2, 2}, {1, 0, 0, 1});
  ASSERT_TRUE(session->parameters().Set("w", identity).ok());
  EXPECT_EQ(session->Step(feeds).value(), 2.5);  // of x itself
  EXPECT_EQ(session->parameters().Get("w")->ToVector<float>(), identity.ToVector<float>());
  ASSERT_TRUE(session->Save(folder.path("c")).ok());
  auto again = TrainingSession::Create(ParseModelText(kTwoLayers).value(), Frozen({"w"})).value();
  ASSERT_TRUE(again->Restore(folder.path("c")).ok());
  EXPECT_EQ(again->Step(feeds).value(), session->Step(feeds).value());
}

TEST(TrainingSessionTest, NamesThatAreNone) {
  const auto session =
      TrainingSession::Create(ParseModelText(kTwoLayers).value(), Frozen({"v", "9.weight", "ww"}));
  ASSERT_FALSE(session.ok());
  EXPECT_THAT(session.status().message(),
              HasSubstr("frozen: the model has no floating initializer '9.weight'"));
  EXPECT_THAT(session.status().message(), HasSubstr("'ww' (nearest: 'w', 'v')"));
}

TEST(TrainingSessionTest, GroupsOfNamesThatAreNone) {
  TrainingOptions options = Frozen({"v"});
  const auto group = [](std::vector<std::string> names) {
    ParameterGroup out;
    out.names = std::move(names);
    return out;
  };
  options.step.groups = {group({"w", "v"}), group({"ww", "*"}), group({"9.weight"})};
  const auto session = TrainingSession::Create(ParseModelText(kTwoLayers).value(), options);
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().message(),
            "groups: the model has no initializer 'ww' (nearest: 'w', 'v'), '9.weight'");
  options.step.groups = {group({"w", "v"}), group({"*"})};
  EXPECT_TRUE(TrainingSession::Create(ParseModelText(kTwoLayers).value(), options).ok());
}

TEST(TrainingSessionTest, DisabledPassesThatAreNone) {
  TrainingOptions options = Frozen({});
  options.disabled_passes = {"weight_packing", "row_fuson"};
  const auto session = TrainingSession::Create(ParseModelText(kTwoLayers).value(), options);
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().message(),
            "disabled_passes: there is no pass 'row_fuson' (nearest: 'row_fusion')");
}

TEST(TrainingSessionTest, UpdatesByGradientsThatItIsFed) {
  TrainingOptions options;
  options.step.optimizer = AdamW{.learning_rate = 0.5};
  options.step.clip_norm = 0.1;
  TrainingOptions whole = options;
  whole.step.loss = Loss::MeanSquaredError("t");
  whole.step.loss.prediction = "y";
  whole.step.keep_gradients = true;
  options.step.loss = Loss::Output("loss");
  options.step.gradient_inputs = true;
  options.step.trainable = {"w"};
  constexpr char kUpdate[] = R"(<ir_version: 10, opset_import: ["": 21]>
update (float zero) => (float loss) <float[2,2] w = {0.5, -0.25, 0.125, 1}> { loss = Neg (zero) })";
  auto first = TrainingSession::Create(ParseModelText(kTwoOutputs).value(), whole).value();
  whole.step.clip_norm = 0;  // its gradients are what is fed
  auto unclipped = TrainingSession::Create(ParseModelText(kTwoOutputs).value(), whole).value();
  auto second = TrainingSession::Create(ParseModelText(kUpdate).value(), options).value();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(unclipped->parameters().Set("w", first->parameters().Get("w").value()).ok());
    ASSERT_TRUE(unclipped->Step(Batch(1.0f + i)).ok());
    ASSERT_TRUE(first->Step(Batch(1.0f + i)).ok());
    const NamedValues feeds = {{"gradient.w", unclipped->runs().gradients().front()},
                               {"zero", Tensor::Scalar<float>(0)}};
    EXPECT_EQ(second->Step(feeds).value(), 0);
    EXPECT_EQ(Weights(*second), Weights(*first));
  }
  options.step.trainable = {"w", "v"};
  EXPECT_THAT(TrainingSession::Create(ParseModelText(kUpdate).value(), options).status().message(),
              HasSubstr("trainable: the model has no initializer 'v'"));
}

}  // namespace
}  // namespace caesura
