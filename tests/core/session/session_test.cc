// SPDX-License-Identifier: Apache-2.0
#include "core/session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<std::unique_ptr<Session>> TrySession(const std::string& body,
                                            ProviderList providers = Tiny(), uint64_t seed = 0) {
  auto model = ParseModelText(
      "<ir_version: 10, opset_import: [\"\" : 23, \"ai.caesura\" : 1, \"test\" : 1]> g " + body);
  if (!model.ok()) return model.status();
  SessionOptions options;
  options.providers = std::move(providers);
  options.threads = 1;
  options.seed = seed;
  return Session::Create(*std::move(model), options);
}
std::unique_ptr<Session> SessionOf(const std::string& body, ProviderList providers = Tiny()) {
  auto session = TrySession(body, std::move(providers));
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  return session.ok() ? *std::move(session) : nullptr;
}

constexpr char kTwoOutputs[] =
    "(float[N] x, float[N] b) => (float[N] s, float[N] n) { s = Add (x, b) n = Neg (s) }";

TEST(Sessions, RunByNameAndSelectOutputs) {
  auto session = SessionOf(kTwoOutputs);
  const NamedValues feeds = {{"b", Floats(Shape{2}, {10, 20})}, {"x", Floats(Shape{2}, {1, 2})}};
  Values all = session->Run(feeds).value();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_THAT(ToFloats(all[0]), ElementsAre(11, 22));
  Values some = session->Run(feeds, {"n", "n", "s"}).value();
  ASSERT_EQ(some.size(), 3u);
  EXPECT_THAT(ToFloats(some[0]), ElementsAre(-11, -22));
  EXPECT_THAT(ToFloats(some[2]), ElementsAre(11, 22));
}

// Before any run, and all of them; but not what no output needs.
TEST(Sessions, WithoutAKernelAreNotMade) {
  const Status status = TrySession(R"((float[2] x, bool c) => (float[2] y) {
    [one] a = Sin (x)
    [two] y = If (c) <
      then_branch = t () => (float[2] p) { [inner] p = Tan (a) },
      else_branch = e () => (float[2] q) { q = Neg (a) }
    >
  })")
                            .status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("2 node(s) have no kernel"));
  EXPECT_THAT(status.message(), HasSubstr("[Sin 'one'] has no kernel on tiny"));
  EXPECT_THAT(status.message(), HasSubstr("[Tan 'inner'] in the body 't' has no kernel on tiny"));
  EXPECT_THAT(TrySession("(double[2] x) => (double[2] y) { y = Neg (x) }").status().message(),
              HasSubstr("input 0 is float64, the kernel takes float32"));
  EXPECT_TRUE(TrySession("(float[2] x) => (float[2] y) { unused = Sin (x) y = Neg (x) }").ok());
}

// Nodes that only unwanted outputs need are not computed, and need not succeed.
// A sequence has no bytes of its own that a kernel for tensors could copy.
TEST(Sessions, SequencesAreForKernelsThatTakeThem) {
  auto session = SessionOf("(seq(float[2]) s) => (seq(float[2]) y) { y = Identity (s) }");
  const auto y = session->Run({{"s", RuntimeValue::Sequence({Floats(Shape{2}, {1, 2})})}});
  EXPECT_EQ(y.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(y.status().message(), HasSubstr("takes tensors only"));
}

TEST(Sessions, ComputeWhatIsAskedFor) {
  auto counted = std::make_shared<FailingProvider>(std::make_shared<TinyProvider>());
  auto session = SessionOf(
      "(float[N] x, bool c) => (float[N] a, float[N] b, float[N] same, float[N] d) {"
      " a = Neg (x) h = Add (x, x) b = Mul (h, x) same = Identity (x)"
      " d = If (c) <then_branch = t () => (float[N] p) { p = Neg (h) }, else_branch = e () => "
      "(float[N] q) { q = Neg (x) }> }",
      {counted});
  const NamedValues feeds = {{"x", Floats(Shape{2}, {1, 2})}, {"c", Tensor::Scalar<bool>(true)}};
  const Values all = session->Run(feeds).value();
  auto calls = [&](const std::vector<std::string>& names, const std::vector<size_t>& indices) {
    counted->FailAt(-1);
    const Values some = session->Run(feeds, names).value();
    for (size_t i = 0; i < names.size(); ++i)
      EXPECT_TRUE(SameBits({some[i]}, {all[indices[i]]})) << names[i];
    return counted->calls();
  };
  const int of_all = calls({}, {});
  EXPECT_EQ(calls({"a"}, {0}), 1);
  EXPECT_EQ(calls({"b"}, {1}), 2);
  EXPECT_EQ(calls({"same"}, {2}), 0);
  EXPECT_EQ(calls({"b", "a", "b"}, {1, 0, 1}), 3);
  EXPECT_EQ(calls({"d"}, {3}), 3) << "the body reads h";
  EXPECT_EQ(calls({"d", "same", "b", "a"}, {3, 2, 1, 0}), of_all);

  IoBinding binding(*session);
  for (const auto& [name, value] : feeds) ASSERT_TRUE(binding.BindInput(name, value).ok());
  const Tensor buffer = Tensor::Zeros(DType::kFloat32, Shape{2});
  ASSERT_TRUE(binding.BindOutput("b", buffer).ok());
  counted->FailAt(-1);
  EXPECT_TRUE(SameBits(session->Run(binding).value(), {all[1]}));
  EXPECT_EQ(counted->calls(), 2);
  EXPECT_THAT(ToFloats(buffer), ElementsAre(2, 8));
}

TEST(Sessions, PlanEachSignatureOnce) {
  auto session = SessionOf(kTwoOutputs);
  for (int64_t n : {2, 3, 2, 3}) {
    const NamedValues feeds = {{"x", Ramp(Shape{n})}, {"b", Ramp(Shape{n})}};
    EXPECT_EQ(session->Run(feeds).value()[0].tensor().shape(), (Shape{n}));
  }
  const NamedValues two = {{"x", Ramp(Shape{2})}, {"b", Ramp(Shape{2})}};
  EXPECT_EQ(session->Plan(two).value(), session->Plan(two).value());
}

TEST(Sessions, WrongFeedsAreNamed) {
  auto session =
      SessionOf("(float[N,2] x, float[2] b) => (float[N,2] y) { y = Neg (x) z = Neg (b) }");
  auto error = [&](const NamedValues& feeds, const std::vector<std::string>& outputs = {}) {
    return session->Run(feeds, outputs).status().message();
  };
  const RuntimeValue x = Ramp(Shape{1, 2}), b = Ramp(Shape{2});
  EXPECT_THAT(error({}), HasSubstr("no value given for input(s) 'x', 'b'"));
  EXPECT_THAT(error({{"x", x}, {"b", b}, {"c", b}, {"d", b}}),
              HasSubstr("the model has no input(s) 'c', 'd'"));
  EXPECT_THAT(error({{"x", x}, {"b", Ramp(Shape{3})}}),
              HasSubstr("input 'b' is float32[2], got float32[3]"));
  EXPECT_THAT(error({{"x", b}, {"b", b}}), HasSubstr("input 'x' is float32[N, 2], got float32[2]"));
  EXPECT_THAT(error({{"x", Tensor::Zeros(DType::kFloat64, Shape{1, 2})}, {"b", b}}),
              HasSubstr("got float64[1, 2]"));
  EXPECT_THAT(error({{"x", x}, {"b", b}}, {"w"}), HasSubstr("the model has no output 'w'"));
  EXPECT_TRUE(session->Run({{"x", x}, {"b", b}}).ok());
}

TEST(Sessions, InputsWithADefaultMayBeLeftOut) {
  auto model = ParseModelText(
      "<ir_version: 10, opset_import: [\"\" : 23]> g (float[2] x) => (float[2] y) "
      "<float[2] w = {1, 2}> { y = Add (x, w) }");
  ASSERT_TRUE(model.ok());
  model->graph->AddInput(model->graph->FindValue("w"));
  SessionOptions options;
  options.providers = Tiny();
  auto session = Session::Create(*std::move(model), options).value();
  const RuntimeValue x = Floats(Shape{2}, {10, 20});
  EXPECT_THAT(ToFloats(session->Run({{"x", x}}).value()[0]), ElementsAre(11, 22));
  EXPECT_THAT(ToFloats(session->Run({{"x", x}, {"w", Floats(Shape{2}, {0, 5})}}).value()[0]),
              ElementsAre(10, 25));
  EXPECT_THAT(ToFloats(session->Run({{"x", x}}).value()[0]), ElementsAre(11, 22));
}

TEST(Sessions, AFailedRunLeavesThemUsable) {
  auto provider = std::make_shared<FailingProvider>(std::make_shared<TinyProvider>());
  auto session = SessionOf(kTwoOutputs, {provider});
  session->fallback().set_enabled(false);
  const NamedValues feeds = {{"x", Floats(Shape{2}, {1, 2})}, {"b", Floats(Shape{2}, {10, 20})}};
  for (int k : {0, 1}) {
    provider->FailAt(k);
    EXPECT_EQ(session->Run(feeds).status().code(), StatusCode::kProviderFailure);
    provider->FailAt(-1);
    EXPECT_THAT(ToFloats(session->Run(feeds).value()[1]), ElementsAre(-11, -22));
  }
}

TEST(Sessions, RandomNumbersDifferFromRunToRunAndRepeatByStep) {
  auto session = SessionOf("(float[8] x) => (float[8] r) { r = RandomUniformLike (x) }");
  const NamedValues feeds = {{"x", Ramp(Shape{8})}};
  RunOptions fixed;
  fixed.seed = 3;
  fixed.step = 5;
  EXPECT_FALSE(SameBits(session->Run(feeds).value(), session->Run(feeds).value()));
  EXPECT_TRUE(
      SameBits(session->Run(feeds, {}, fixed).value(), session->Run(feeds, {}, fixed).value()));
}

TEST(Sessions, SeedAndStepZeroAreNotTheDefaults) {
  auto session =
      TrySession("(float[8] x) => (float[8] r) { r = RandomUniformLike (x) }", Tiny(), 7).value();
  const NamedValues feeds = {{"x", Ramp(Shape{8})}};
  const auto run = [&](std::optional<uint64_t> seed, std::optional<uint64_t> step) {
    RunOptions options;
    options.seed = seed;
    options.step = step;
    return session->Run(feeds, {}, options).value();
  };
  const auto first = run(std::nullopt, std::nullopt);  // the session's seed, step 0
  EXPECT_TRUE(SameBits(run(std::nullopt, 0), first));
  EXPECT_TRUE(SameBits(run(7, 0), first));
  EXPECT_FALSE(SameBits(run(0, 0), first));
  EXPECT_FALSE(SameBits(run(std::nullopt, std::nullopt), first));  // step 1
}

TEST(Sessions, AYieldIsForTraining) {
  auto session =
      SessionOf("(float[2] x) => (float[2] y) { d = ai.caesura.YieldOp (x) y = Neg (d) }");
  const Status status = session->Run({{"x", Ramp(Shape{2})}}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("YieldOp"));
}

TEST(SessionThreads, AnAsynchronousRunMayEndItsSession) {
  const NamedValues feeds = {{"x", Floats(Shape{2}, {1, 2})}, {"b", Floats(Shape{2}, {10, 20})}};
  for (int round = 0; round < 20; ++round) {
    std::shared_ptr<Session> session = SessionOf(kTwoOutputs);
    std::atomic<int> ended{0};
    std::promise<void> released, last;
    for (int i = 0; i < 4; ++i)
      ASSERT_TRUE(session->RunAsync(feeds, {"n"}, [&](auto) { ++ended; }).ok());
    auto done = [&, held = session](Result<Values> results) mutable {
      EXPECT_THAT(ToFloats(results.value()[0]), ElementsAre(-11, -22));
      released.get_future().wait();
      held.reset();  // the last one
      EXPECT_EQ(ended, 4) << "it waits for the others";
      last.set_value();
    };
    ASSERT_TRUE(session->RunAsync(feeds, {"n"}, std::move(done)).ok());
    std::future<void> destroyed = last.get_future();
    session.reset();
    released.set_value();
    destroyed.wait();
  }
}

TEST(SessionThreads, AsynchronousRunsCanBeWaitedFor) {
  auto session = SessionOf(kTwoOutputs);
  std::atomic<int> ended{0};
  for (int i = 1; i <= 20; ++i) {
    const NamedValues feeds = {{"x", Ramp(Shape{i})}, {"b", Ramp(Shape{i})}};
    ASSERT_TRUE(
        session->RunAsync(feeds, {}, [&](Result<Values> results) { ended += results.ok(); }).ok());
  }
  session->WaitForAsyncRuns();
  EXPECT_EQ(ended, 20);
}

TEST(SessionThreads, RunsFromManyThreadsWithManySignatures) {
  auto session = SessionOf(kTwoOutputs);
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round) {
        const int64_t n = 1 + (t + round) % 5;
        const NamedValues feeds = {{"x", Ramp(Shape{n}, 1.0f)},
                                   {"b", Ramp(Shape{n}, static_cast<float>(t + 1))}};
        auto results = session->Run(feeds);
        if (results.ok() && ToFloats((*results)[1])[0] == -1.0f - static_cast<float>(t + 1))
          ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 80);
}

}  // namespace
}  // namespace caesura::testing
