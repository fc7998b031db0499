// SPDX-License-Identifier: Apache-2.0
// Ops from shared libraries: one written in C11 (tests/core/plugin/test_ops.c), one in C++17
// (test_ops_cpp17.cc).
#include "core/custom_ops/plugin_op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/execute/partial_executor.h"
#include "core/onnx/model_reader.h"
#include "core/session/session.h"
#include "tests/tensors.h"
#include "tests/test_paths.h"

namespace caesura {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

SessionOptions WithLibraries() {
  SessionOptions options;
  for (const char* path : {testing::kTestOpsC, testing::kTestOpsCpp17}) {
    const Status status = options.custom_ops.AddLibrary(path);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  return options;
}

Result<std::unique_ptr<Session>> MakePluginSession(const std::string& body,
                                                   SessionOptions options = WithLibraries()) {
  auto model = ParseModelText(
      "<ir_version: 10, opset_import: [\"\" : 23, \"test.c\" : 3, \"test.cpp\" : 1]> g " + body);
  if (!model.ok()) return model.status();
  return Session::Create(*std::move(model), std::move(options));
}

std::unique_ptr<Session> Made(const std::string& body, SessionOptions options = WithLibraries()) {
  auto session = MakePluginSession(body, std::move(options));
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  return session.ok() ? *std::move(session) : nullptr;
}

std::vector<float> Compute(Session& session, const NamedValues& feeds) {
  auto results = session.Run(feeds);
  EXPECT_TRUE(results.ok()) << results.status().ToString();
  return results.ok() ? (*results)[0].tensor().ToVector<float>() : std::vector<float>();
}

TEST(PluginOps, ComputeWithAttributesAndOptions) {
  SessionOptions options = WithLibraries();
  options.custom_ops.options.ForNode("b").Update("offset", "100");
  auto session = Made(
      "(float[N] x) => (float[N] y) { [a] z = test.c.Scale <factor = 2.0> (x) [b] y = test.c.Scale "
      "(z) }",
      options);
  EXPECT_THAT(Compute(*session, {{"x", FloatVector({1, 2, 3})}}), ElementsAre(102, 104, 106));
  EXPECT_EQ(session->outputs()[0]->type().ToString(), "float32[N]")
      << "dims that are symbols come through";
}

TEST(PluginOps, SizesFollowFromValues) {
  auto session = Made("(float[N] x, int64 n) => (float[M] y) { y = test.c.Repeat (x, n) }");
  for (int64_t n : {2, 3, 0}) {
    EXPECT_EQ(
        Compute(*session, {{"x", FloatVector({1, 2})}, {"n", Tensor::Scalar<int64_t>(n)}}).size(),
        static_cast<size_t>(2 * n));
  }
  auto constant = Made("(float[N] x) => (float[M] y) <int64 n = {2}> { y = test.c.Repeat (x, n) }");
  EXPECT_THAT(Compute(*constant, {{"x", FloatVector({5, 6})}}), ElementsAre(5, 6, 5, 6));
}

// Right in the first run and in all that follow, whatever sizes come, and from several threads.
TEST(PluginOps, NothingIsLeftFromRunToRun) {
  auto session = Made(
      "(float[N] x) => (float[M] y) { p = test.c.Positive (x) y = test.c.Scale <factor = -1.0> (p) "
      "}");
  auto check = [&](int seed) {
    for (int round = 0; round < 200; ++round) {
      std::vector<float> x, expected;
      for (int i = 0; i < (seed + round) % 7; ++i) {
        x.push_back(static_cast<float>((seed * 31 + round * 7 + i * 13) % 9) - 4);
        if (x.back() > 0) expected.push_back(-x.back());
      }
      ASSERT_EQ(Compute(*session, {{"x", FloatVector(x)}}), expected);
    }
  };
  check(0);
  std::vector<std::thread> threads;
  for (int i = 1; i <= 4; ++i) threads.emplace_back(check, i);
  for (std::thread& thread : threads) thread.join();
}

TEST(PluginOps, AreShownAllOfANode) {
  SessionOptions options = WithLibraries();
  options.custom_ops.options.ForNode("n").Update(OptionSet{{"b", "2"}, {"a", "1"}});
  const auto failed = MakePluginSession(
      "(float[N,2,N] x) => (float[N,2,N] y) <int64[2] c = {1, 2}> { [n] y = test.c.Spell <i = -3, "
      "f = 0.5, s = \"text\", is = [1, 2],"
      " fs = [1.0, 2.5], ss = [\"p\", \"q\"], t = float[2] {1, 2}> (x, , c) }",
      options);
  EXPECT_EQ(failed.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(failed.status().message(),
              HasSubstr("[test.c::Spell 'n'] n Spell v3 | x:1[-2,2,-2] -:0 c:7[2]=constant -> "
                        "y:1[-2,2,-2] | f=f0.5  fs=f1 f2.5  i=i-3 "
                        " is=i1 i2  s=stext  ss=sp sq  t=t1/2 | a=1 b=2"));
}

TEST(PluginOps, FailuresNameTheNode) {
  auto careless = Made("(float[N] x) => (float[M] y) { [n] y = test.c.Careless (x) }");
  EXPECT_THAT(careless->Run({{"x", FloatVector({1})}}).status().message(),
              AllOf(HasSubstr("[test.c::Careless 'n' on "),
                    HasSubstr("] its compute has not allocated output 0")));
  auto broken = Made("(float[N] x) => (float[N] y) { [n] y = test.c.Broken (x) }");
  const Status status = broken->Run({{"x", FloatVector({1})}}).status();
  EXPECT_EQ(status.code(), StatusCode::kProviderFailure) << "which a session may fall back on";
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("[test.c::Broken 'n' on "), HasSubstr("] the device is gone")));
  EXPECT_THAT(MakePluginSession("(double[N] x) => (double[N] y) { y = test.c.Scale (x) }")
                  .status()
                  .message(),
              HasSubstr("the kernel takes float32"));
  EXPECT_THAT(MakePluginSession("(float[N] x) => (float[N] y) { y = test.c.Repeat (x) }")
                  .status()
                  .message(),
              HasSubstr("has 1 inputs"));
}

TEST(PluginOps, CanBeWrittenInCpp17) {
  auto session = Made(
      "(float[N] x, float[N] z) => (float[N] y) { y = test.cpp.Blend <weights = [1.0, 5.0, 2.0]> "
      "(x, , z) }");
  EXPECT_THAT(Compute(*session, {{"x", FloatVector({1, 2})}, {"z", FloatVector({10, 20})}}),
              ElementsAre(21, 42));
  const Status wrong =
      MakePluginSession(
          "(float[N] x) => (float[N] y) { [n] y = test.cpp.Blend <weights = [1.0, 5.0]> (x) }")
          .status();
  EXPECT_EQ(wrong.code(), StatusCode::kInvalidModel);
  EXPECT_THAT(wrong.message(), HasSubstr("[test.cpp::Blend 'n'] has 2 weights for 1 inputs"));
  SessionOptions bad = WithLibraries();
  bad.custom_ops.options.ForOp("Blend", "test.cpp").Update("mood", "bad");
  EXPECT_THAT(MakePluginSession(
                  "(float[N] x) => (float[N] y) { y = test.cpp.Blend <weights = [1.0]> (x) }", bad)
                  .status()
                  .ToString(),
              HasSubstr("INTERNAL: [test.cpp::Blend 'Blend'] not today"));
}

// The library is opened once, and nobody keeps a handle alive: sessions come and go in any order.
TEST(PluginOps, OutliveTheOptionsAndTheSessionsThatBroughtThem) {
  const std::string text = "(float[N] x) => (float[N] y) { y = test.c.Scale <factor = 3.0> (x) }";
  auto first = Made(text);
  std::shared_ptr<const ExecutionPlan> plan = first->Plan({{"x", FloatVector({1})}}).value();
  auto second = Made(text);
  first.reset();
  EXPECT_THAT(Compute(*second, {{"x", FloatVector({2})}}), ElementsAre(6));
  ExecutionState state(plan);
  ASSERT_TRUE(state.Start({FloatVector({4})}, {}).ok());
  ASSERT_TRUE(PartialExecutor::Run(state).ok()) << "a plan is enough";
  EXPECT_THAT(state.TakeFetches()[0].tensor().ToVector<float>(), ElementsAre(12));
}

}  // namespace
}  // namespace caesura
