// SPDX-License-Identifier: Apache-2.0
// OpenVINO, through its plug-in, beside our own kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/plugin/plugin_provider.h"
#include "core/providers/compiled_subgraph.h"
#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "graph_transforms/pipeline.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kOpenVino[] = "OpenVINOExecutionProvider";

// Sums of a few hundred products in another order.
constexpr float kTolerance = 2e-5f;

std::unique_ptr<Session> SessionOf(const std::string& body, ProviderList providers) {
  SessionOptions options;
  options.providers = std::move(providers);
  options.passes = InferencePasses;
  options.fallback = false;
  options.threads = 1;
  Model model;
  model.graph = GraphOf(body);
  auto session = Session::Create(std::move(model), options);
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  return session.ok() ? *std::move(session) : nullptr;
}

ProviderList WithOpenVino(ProviderOptions options = {}) {
  options.try_emplace("min_nodes", "1");
  return {ProviderByName(kOpenVino, options).value(), MakeCpuProvider()};
}

int Parts(const Session& session) {
  int out = 0;
  for (const auto& node : session.model().graph->nodes())
    out += node->Is(kCompiledSubgraphOp, kCaesuraDomain);
  return out;
}

void ExpectClose(const RuntimeValue& got, const RuntimeValue& want) {
  ASSERT_EQ(got.tensor().shape(), want.tensor().shape());
  const std::vector<float> a = ToFloats(got), b = ToFloats(want);
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], kTolerance * (1 + std::abs(b[i]))) << "element " << i;
}

constexpr char kNet[] =
    R"((float[N, 2, 6, 6] x, float[3, 2, 3, 3] w, float[3] b, float[27, 4] u) => (float[N, 4] y)
    <int64[2] rows = {0, -1}> {
  c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w, b)
  r = Relu (c)
  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
  f = Reshape (p, rows)
  m = MatMul (f, u)
  y = Softmax <axis = -1> (m)
})";

NamedValues NetFeeds(int64_t n) {
  return {{"x", Ramp(Shape{n, 2, 6, 6})},
          {"w", Ramp(Shape{3, 2, 3, 3}, 0.0625f)},
          {"b", Ramp(Shape{3})},
          {"u", Ramp(Shape{27, 4}, 0.015625f)}};
}

TEST(OpenVinoProvider, ComputesWhatTheCpuComputes) {
  auto cpu = SessionOf(kNet, {MakeCpuProvider()});
  for (const char* shapes : {"static", "dynamic"}) {
    auto session = SessionOf(kNet, WithOpenVino({{"shapes", shapes}}));
    EXPECT_EQ(Parts(*session), 1);
    EXPECT_EQ(session->model().graph->nodes().size(), 1u);
    for (int64_t n : {3, 1, 3, 8}) {
      ExpectClose(session->Run(NetFeeds(n)).value()[0], cpu->Run(NetFeeds(n)).value()[0]);
    }
  }
}

TEST(OpenVinoProvider, ThreadsShareASession) {
  auto session = SessionOf(kNet, WithOpenVino());
  const RuntimeValue want[] = {session->Run(NetFeeds(1)).value()[0],
                               session->Run(NetFeeds(2)).value()[0]};
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        auto out = session->Run(NetFeeds(i % 2 + 1));
        if (!out.ok() || !SameBits((*out)[0], want[i % 2])) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// A part's outputs keep their values when the session runs again.
TEST(OpenVinoProvider, OutputsAreTheCallers) {
  auto session =
      SessionOf("(float[N] x) => (float[N] y) { a = Exp (x) y = Relu (a) }", WithOpenVino());
  const RuntimeValue first = session->Run({{"x", Floats(Shape{2}, {0, 0})}}).value()[0];
  ASSERT_TRUE(session->Run({{"x", Floats(Shape{2}, {5, 5})}}).ok());
  EXPECT_EQ(ToFloats(first), (std::vector<float>{1, 1}));
}

TEST(OpenVinoProvider, TakesNoWideAndNoHalfNumbers) {
  for (const char* type : {"double", "int64", "float16", "bfloat16", "int32", "uint8"}) {
    const std::string text = type;
    auto session =
        SessionOf("(" + text + "[N] x) => (" + text + "[N] y) { a = Add (x, x) y = Mul (a, a) }",
                  WithOpenVino());
    EXPECT_EQ(Parts(*session), 0) << type;
  }
  auto session = SessionOf("(float[N] x) => (bool[N] y) { a = Add (x, x) y = Greater (a, x) }",
                           WithOpenVino());
  EXPECT_EQ(Parts(*session), 1);
  const RuntimeValue out = session->Run({{"x", Floats(Shape{3}, {1, -1, 2})}}).value()[0];
  EXPECT_EQ(out.tensor().ToVector<int>(), (std::vector<int>{1, 0, 1}));
}

TEST(OpenVinoProvider, LeavesSmallPartsByDefault) {
  auto session = SessionOf("(float[N] x) => (float[N] y) { a = Exp (x) y = Relu (a) }",
                           {ProviderByName(kOpenVino).value(), MakeCpuProvider()});
  EXPECT_EQ(Parts(*session), 0);
}

TEST(OpenVinoProvider, EmptyBatches) {
  auto session =
      SessionOf("(float[N, 3] x) => (float[N, 3] y) { a = Exp (x) b = Add (a, a) y = Relu (b) }",
                WithOpenVino());
  for (int64_t n : {2, 0, 2}) {
    auto out = session->Run({{"x", Ramp(Shape{n, 3})}});
    ASSERT_TRUE(out.ok()) << out.status().ToString();
    EXPECT_EQ((*out)[0].tensor().shape(), (Shape{n, 3}));
  }
}

TEST(OpenVinoProvider, OptionsAreChecked) {
  const ProviderOptions wrong[] = {
      {{"speed", "9"}}, {{"threads", "0"}}, {{"threads", "many"}}, {{"shapes", "round"}}};
  for (const ProviderOptions& options : wrong) {
    const Status status = ProviderByName(kOpenVino, options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << options.begin()->first;
    EXPECT_THAT(status.message(), HasSubstr(options.begin()->first));
  }
  EXPECT_TRUE(
      ProviderByName(kOpenVino, {{"threads", "2"}, {"shapes", "dynamic"}, {"min_nodes", "5"}})
          .ok());
}

}  // namespace
}  // namespace caesura::testing
