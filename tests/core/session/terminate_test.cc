// SPDX-License-Identifier: Apache-2.0
// Runs that would never end, ended by their caller while they are within bodies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <thread>

#include "core/onnx/model_reader.h"
#include "core/session/session.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

constexpr char kHead[] = "<ir_version: 10, opset_import: [\"\" : 23]> g ";

std::unique_ptr<Session> EndlessSession(const std::string& body) {
  auto model = ParseModelText(kHead + body);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return Session::Create(*std::move(model)).value();
}

// The status of a run that is ended when it has been at work for a while.
Status EndedRun(Session& session) {
  auto cancel = std::make_shared<std::atomic<bool>>(false);
  auto run = std::async(std::launch::async, [&] {
    return session.Run({{"x", Tensor::Scalar<float>(0)}}, {}, {.cancel = cancel}).status();
  });
  EXPECT_EQ(run.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout)
      << "is to be endless";
  *cancel = true;
  if (run.wait_for(std::chrono::seconds(30)) == std::future_status::timeout) {
    ADD_FAILURE() << "still running 30 s after its caller has ended it";
    std::abort();
  }
  return run.get();
}

TEST(Terminate, EndsALoop) {
  auto session = EndlessSession(R"((float x) => (float y) <bool t = {1}> {
    [loop] y = Loop (, t, x) <body = b (int64 i, bool c, float v) => (bool go, float w) { go = Identity (c) w = Add (v, v) }>
  })");
  const Status status = EndedRun(*session);
  EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("[Loop 'loop'"));
  EXPECT_THAT(status.message(), HasSubstr("the run was ended by its caller"));
}

// A body without a step of its own is looked at too.
TEST(Terminate, EndsALoopWithAnEmptyBody) {
  auto session = EndlessSession(R"((float x) => (float y) <bool t = {1}> {
    y = Loop (, t, x) <body = b (int64 i, bool c, float v) => (bool c, float v) { }>
  })");
  EXPECT_EQ(EndedRun(*session).code(), StatusCode::kCancelled);
}

TEST(Terminate, EndsALoopWithinALoopWithinABranch) {
  auto session = EndlessSession(R"((float x) => (float y) <bool t = {1}, int64 once = {1}> {
    y = If (t) <
      then_branch = yes () => (float p) {
        p = Loop (once, t, x) <body = outer (int64 i, bool c, float v) => (bool go, float w) {
          go = Identity (c)
          w = Loop (, c, v) <body = inner (int64 j, bool d, float a) => (bool on, float b) { on = Identity (d) b = Add (a, a) }>
        }>
      },
      else_branch = no () => (float q) { q = Identity (x) }>
  })");
  EXPECT_EQ(EndedRun(*session).code(), StatusCode::kCancelled);
}

TEST(Terminate, EndsALoopWithinAScan) {
  auto session = EndlessSession(
      R"((float x) => (float y, float[4] all) <bool t = {1}, float[4] row = {1, 2, 3, 4}> {
    y, all = Scan <num_scan_inputs = 1, body = b (float v, float r) => (float w, float s) {
      w = Loop (, t, v) <body = inner (int64 j, bool d, float a) => (bool on, float e) { on = Identity (d) e = Add (a, r) }>
      s = Identity (r)
    }> (x, row)
  })");
  EXPECT_EQ(EndedRun(*session).code(), StatusCode::kCancelled);
}

// The session is as good as before.
TEST(Terminate, LeavesTheSessionUsable) {
  auto session = EndlessSession(R"((float x) => (float y) <bool t = {1}> {
    y = Loop (, t, x) <body = b (int64 i, bool c, float v) => (bool go, float w) <float one = {1}, float end = {100000}> {
      w = Add (v, one) go = Less (w, end)
    }>
  })");
  auto cancel = std::make_shared<std::atomic<bool>>(true);
  const NamedValues feeds = {{"x", Tensor::Scalar<float>(0)}};
  EXPECT_EQ(session->Run(feeds, {}, {.cancel = cancel}).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(session->Run(feeds).value()[0].tensor().ToVector<float>()[0], 100000);
}

}  // namespace
}  // namespace caesura
