// SPDX-License-Identifier: Apache-2.0
// Training steps that their caller ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>

#include "core/onnx/model_reader.h"
#include "training/session/training_session.h"

namespace caesura {
namespace {

std::unique_ptr<TrainingSession> SessionOf(const std::string& trips) {
  auto model = ParseModelText(
      "<ir_version: 10, opset_import: [\"\" : 23]> g (float[2] x) => (float loss) <float[2] w = "
      "{1, 2},"
      " bool t = {1}, float zero = {0}, int64 trips = {" +
      trips + R"(}> {
    p = Mul (x, w)
    sum = ReduceSum <keepdims = 0> (p)
    slow = Loop (trips, t, zero) <
      body = b (int64 i, bool c, float v) => (bool go, float u) { go = Identity (c) u = Add (v, v) }>
    loss = Add (sum, slow)
  })");
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  TrainingOptions options;
  options.step.loss = Loss::Output("loss");
  options.step.optimizer = Sgd{.learning_rate = 1};
  options.step.trainable = {"w"};
  return TrainingSession::Create(*std::move(model), options).value();
}

std::vector<float> WeightsOf(const TrainingSession& session) {
  return session.parameters().Get("w").value().ToVector<float>();
}

TEST(TrainingTerminate, EndsAStepWithinALoopAndChangesNothing) {
  auto session = SessionOf("4611686018427387904");
  const NamedValues feeds = {{"x", Tensor::Of<float>({2}, {1, 1})}};
  auto step = std::async(std::launch::async, [&] { return session->Step(feeds).status(); });
  EXPECT_EQ(step.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  session->control().set_terminate(true);
  if (step.wait_for(std::chrono::seconds(30)) == std::future_status::timeout) {
    ADD_FAILURE() << "still running 30 s after its caller has ended it";
    std::abort();
  }
  EXPECT_EQ(step.get().code(), StatusCode::kCancelled);
  EXPECT_THAT(WeightsOf(*session), ::testing::ElementsAre(1, 2));
  EXPECT_EQ(session->progress().updates, 0);
}

TEST(TrainingTerminate, HoldsUntilItIsTakenBack) {
  auto session = SessionOf("3");
  const NamedValues feeds = {{"x", Tensor::Of<float>({2}, {1, 1})}};
  session->control().set_terminate(true);
  EXPECT_EQ(session->Step(feeds).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(session->Evaluate(feeds).status().code(), StatusCode::kCancelled);
  session->control().set_terminate(false);
  EXPECT_EQ(session->Step(feeds).value(), 3);
  EXPECT_THAT(WeightsOf(*session), ::testing::ElementsAre(0, 1));
}

}  // namespace
}  // namespace caesura
