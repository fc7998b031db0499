// SPDX-License-Identifier: Apache-2.0
// Providers from outside, through a plug-in written in C.
#include "core/plugin/plugin_provider.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

#include "core/custom_ops/plugin_op.h"
#include "core/plan/subgraph_partition.h"
#include "core/plugin/plugin_library.h"
#include "core/session/session.h"
#include "graph_transforms/pipeline.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/plugin/test_provider_fixture.h"
#include "tests/test_paths.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<std::unique_ptr<Session>> TrySession(const std::string& body, ProviderList providers) {
  SessionOptions options;
  options.providers = std::move(providers);
  options.passes = InferencePasses;
  options.fallback = false;
  options.threads = 1;
  Model model;
  model.graph = GraphOf(body);
  return Session::Create(std::move(model), options);
}
std::unique_ptr<Session> SessionOf(const std::string& body, ProviderList providers) {
  auto session = TrySession(body, std::move(providers));
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  return session.ok() ? *std::move(session) : nullptr;
}

std::vector<std::string> OpsOf(const Session& session) {
  std::vector<std::string> out;
  for (const auto& node : session.model().graph->nodes()) out.push_back(node->op_type());
  return out;
}

constexpr char kChain[] =
    "(float[N] x) => (float[N] y) <float[3] c = {1, -20, 3}> { a = Add (x, c) r = Relu (a) y = Add "
    "(r, r) }";

TEST(PluginProvider, RunsAChainAsOne) {
  const TestProviderCounts before = CountsOfTestProvider();
  auto session = SessionOf(kChain, WithTestProvider());
  EXPECT_THAT(OpsOf(*session), ElementsAre("CompiledSubgraph"));
  for (float k : {1.0f, 2.0f, 3.0f}) {
    Values out = session->Run({{"x", Floats(Shape{3}, {k, k, k})}}).value();
    EXPECT_THAT(ToFloats(out[0]), ElementsAre(2 * (k + 1), 0, 2 * (k + 3)));
  }
  const TestProviderCounts after = CountsOfTestProvider();
  EXPECT_EQ(after[kCompiles] - before[kCompiles], 1);
  EXPECT_EQ(after[kCompiledNodes] - before[kCompiledNodes], 3);
  EXPECT_EQ(after[kRuns] - before[kRuns], 3);
  EXPECT_EQ(after[kThreads], 1);
  const std::string plan = session->Plan({{"x", Ramp(Shape{3})}}).value()->ToString();
  EXPECT_THAT(plan, HasSubstr("TestExecutionProvider"));
}

TEST(PluginProvider, ReleasesAllThatItMade) {
  const TestProviderCounts before = CountsOfTestProvider();
  {
    auto session = SessionOf(kChain, WithTestProvider());
    ASSERT_TRUE(session->Run({{"x", Ramp(Shape{3})}}).ok());
    EXPECT_EQ(CountsOfTestProvider()[kCompiled] - before[kCompiled], 1);
  }
  const TestProviderCounts after = CountsOfTestProvider();
  EXPECT_EQ(after[kCompiled], before[kCompiled]);
  EXPECT_EQ(after[kInstances], before[kInstances]);
}

// A value that leaves a part and comes back would make it wait for itself.
TEST(PluginProvider, PartsCanRunAsAWhole) {
  auto session = SessionOf(
      "(float[N] x) => (float[N] y) { a = Relu (x) s = Sin (a) b = Relu (a) y = Add (b, s) }",
      WithTestProvider());
  EXPECT_THAT(OpsOf(*session), ElementsAre("CompiledSubgraph", "Sin", "CompiledSubgraph"));
  Values out = session->Run({{"x", Floats(Shape{2}, {0.5f, -1})}}).value();
  EXPECT_THAT(ToFloats(out[0]), ElementsAre(::testing::FloatNear(0.5f + std::sin(0.5f), 1e-6f), 0));
}

// Two parts each of which would read the other.
TEST(PluginProvider, PartsDoNotWaitForEachOther) {
  auto session = SessionOf(
      "(float[N] x, float[N] z) => (float[N] u, float[N] w) {"
      " a = Relu (x) b = Relu (z) c = Sin (a) d = Sin (b) e = Add (a, d) f = Add (b, c) u = Relu "
      "(e) w = Relu (f) }",
      WithTestProvider());
  Values out = session->Run({{"x", Floats(Shape{1}, {1})}, {"z", Floats(Shape{1}, {2})}}).value();
  EXPECT_FLOAT_EQ(ToFloats(out[0])[0], 1 + std::sin(2.0f));
  EXPECT_FLOAT_EQ(ToFloats(out[1])[0], 2 + std::sin(1.0f));
}

TEST(PluginProvider, CompilesOncePerShapeAndThreadsShareIt) {
  const TestProviderCounts before = CountsOfTestProvider();
  auto session =
      SessionOf("(float[N] x) => (float[N] y) { a = Add (x, x) y = Relu (a) }", WithTestProvider());
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 60; ++i) {
        const int64_t n = i % 3 + 1;
        auto out = session->Run({{"x", Floats(Shape{n}, std::vector<float>(n, 4))}});
        if (!out.ok() || ToFloats((*out)[0]) != std::vector<float>(n, 8)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(CountsOfTestProvider()[kCompiles] - before[kCompiles], 3);
  EXPECT_EQ(CountsOfTestProvider()[kRuns] - before[kRuns], 240);
}

TEST(PluginProvider, ShapesOfEqualSizeAreCompiledApart) {
  auto session = SessionOf("(float[N, M] x) => (float[N, M] y) { a = Add (x, x) y = Relu (a) }",
                           WithTestProvider());
  for (const Shape& shape : {Shape{2, 3}, Shape{3, 2}, Shape{2, 3}}) {
    EXPECT_EQ(session->Run({{"x", Ramp(shape)}}).value()[0].tensor().shape(), shape);
  }
}

TEST(PluginProvider, OneCompiledPartMayServeAllShapes) {
  const TestProviderCounts before = CountsOfTestProvider();
  auto session = SessionOf("(float[N] x) => (float[N] y) { a = Add (x, x) y = Relu (a) }",
                           WithTestProvider({{"any_shape", "1"}}));
  for (int64_t n : {1, 5, 3, 5}) {
    EXPECT_EQ(session->Run({{"x", Ramp(Shape{n})}}).value()[0].tensor().shape(), (Shape{n}));
  }
  EXPECT_EQ(CountsOfTestProvider()[kCompiles] - before[kCompiles], 1);
}

// After NonZero sizes show at run time: the part is compiled there, once a size.
TEST(PluginProvider, SizesThatShowInTheRun) {
  const TestProviderCounts before = CountsOfTestProvider();
  auto session = SessionOf(
      "(float[N] x) => (float[1, M] y) { i = NonZero (x) f = Cast <to: int = 1> (i) a = Add (f, f) "
      "y = Relu (a) }",
      WithTestProvider());
  for (int k = 0; k < 2; ++k) {
    EXPECT_THAT(ToFloats(session->Run({{"x", Floats(Shape{4}, {0, 1, 0, 1})}}).value()[0]),
                ElementsAre(2, 6));
    EXPECT_THAT(ToFloats(session->Run({{"x", Floats(Shape{4}, {0, 0, 0, 1})}}).value()[0]),
                ElementsAre(6));
  }
  EXPECT_EQ(CountsOfTestProvider()[kCompiles] - before[kCompiles], 2);
}

TEST(PluginProvider, SmallPartsStay) {
  auto session = SessionOf(
      "(float[N] x) => (float[N] y) { a = Relu (x) s = Sin (a) b = Relu (s) y = Add (b, b) }",
      WithTestProvider({{"min_nodes", "2"}}));
  EXPECT_THAT(OpsOf(*session), ElementsAre("Relu", "Sin", "CompiledSubgraph"));
}

TEST(PluginProvider, GroupsStayApart) {
  auto session = SessionOf(kChain, WithTestProvider({{"claims", "each"}}));
  EXPECT_THAT(OpsOf(*session),
              ElementsAre("CompiledSubgraph", "CompiledSubgraph", "CompiledSubgraph"));
  EXPECT_THAT(ToFloats(session->Run({{"x", Floats(Shape{3}, {1, 1, 1})}}).value()[0]),
              ElementsAre(4, 0, 8));
}

TEST(PluginProvider, InputsOfWrongShapesAreTheCallersFault) {
  auto session =
      SessionOf("(float[N] x, float[M] z) => (float[K] y) { a = Add (x, z) y = Relu (a) }",
                WithTestProvider());
  const Status status = session->Run({{"x", Ramp(Shape{2})}, {"z", Ramp(Shape{3})}}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
}

TEST(PluginProvider, FailuresNameTheProviderAndTheNodes) {
  auto session = SessionOf(kChain, WithTestProvider({{"fail", "compile"}}));
  Status status = session->Run({{"x", Ramp(Shape{3})}}).status();
  EXPECT_EQ(status.code(), StatusCode::kProviderFailure);
  for (const char* part :
       {"TestExecutionProvider failed to compile", "[Add", "[Relu", "planted: cannot compile"}) {
    EXPECT_THAT(status.message(), HasSubstr(part));
  }
  session = SessionOf(kChain, WithTestProvider({{"fail", "1"}, {"garbage", "1"}}));
  EXPECT_TRUE(session->Run({{"x", Ramp(Shape{3})}}).ok());
  status = session->Run({{"x", Ramp(Shape{3})}}).status();
  EXPECT_EQ(status.code(), StatusCode::kProviderFailure);
  EXPECT_THAT(status.message(), HasSubstr("TestExecutionProvider failed to run"));
  EXPECT_TRUE(session->Run({{"x", Ramp(Shape{3})}}).ok());
}

TEST(PluginProvider, ClaimingMoreThanItCanDoIsAProviderFailure) {
  auto session = SessionOf("(float[N] x) => (float[N] y) { y = Hardmax <axis: int = -1> (x) }",
                           WithTestProvider({{"claims", "everything"}}));
  EXPECT_EQ(session->Run({{"x", Ramp(Shape{3})}}).status().code(), StatusCode::kProviderFailure);
}

TEST(PluginProvider, OptionsAreChecked) {
  EXPECT_EQ(TryTestProvider({{"speed", "9"}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(TryTestProvider({{"speed", "9"}}).status().message(),
              HasSubstr("TestExecutionProvider: speed"));
  for (const char* text : {"0", "-1", "", "2x", "two"}) {
    EXPECT_EQ(TryTestProvider({{"min_nodes", text}}).status().code(), StatusCode::kInvalidArgument)
        << text;
  }
}

// A device across the border: arguments are in its memory, at addresses where the host would fault.
TEST(PluginProvider, WorksInMemoryOfItsOwn) {
  const TestProviderCounts before = CountsOfTestProvider();
  {
    auto session = SessionOf(
        "(float[N] x) => (float[N] y) <float[3] c = {1, -20, 3}>"
        "{ a = Add (x, c) r = Relu (a) s = Sin (r) t = Relu (s) y = Add (t, r) }",
        WithTestProvider({}, "FarExecutionProvider"));
    for (int i = 0; i < 2; ++i) {
      Values out = session->Run({{"x", Floats(Shape{3}, {0, 0, 0})}}).value();
      EXPECT_FLOAT_EQ(ToFloats(out[0])[0], 1 + std::sin(1.0f));
      EXPECT_FLOAT_EQ(ToFloats(out[0])[1], 0);
    }
    EXPECT_GT(CountsOfTestProvider()[kBuffers], before[kBuffers]);
  }
  const TestProviderCounts after = CountsOfTestProvider();
  EXPECT_EQ(after[kToDevice] - before[kToDevice], 4);  // x and s, in both runs
  EXPECT_EQ(after[kToHost] - before[kToHost], 4);      // r and y
  EXPECT_EQ(after[kBuffers], before[kBuffers]);
  EXPECT_EQ(after[kInstances], before[kInstances]);
}

TEST(PluginProvider, SizesThatShowInTheRunOfADevice) {
  auto session = SessionOf(
      "(float[N] x) => (float[1, M] y) { i = NonZero (x) f = Cast <to: int = 1> (i) a = Add (f, f) "
      "y = Relu (a) }",
      WithTestProvider({}, "FarExecutionProvider"));
  EXPECT_THAT(ToFloats(session->Run({{"x", Floats(Shape{4}, {0, 1, 0, 1})}}).value()[0]),
              ElementsAre(2, 6));
}

// Ops on a device's memory are handed its stream, whichever way they are written; ops on the host's
// get none.
void* seen_by_c = nullptr;

TEST(PluginProvider, OpsOnItsMemoryGetItsStream) {
  auto seen = std::make_shared<std::map<std::string, void*>>();
  auto probe = [&](const std::string& op_type, const std::string& provider) {
    CustomOp op;
    op.schema = {.op_type = op_type, .domain = "mine", .type_of_output = {0}};
    op.provider = provider;
    KernelDef kernel;
    kernel.create = [seen, op_type](KernelInfo& info) -> Status {
      info.SetOutput(0, info.InputDType(0), info.InputShape(0));
      info.SetCompute(
          [seen, op_type](KernelContext& context) { (*seen)[op_type] = context.device_stream(); });
      return {};
    };
    op.kernels = {kernel};
    return op;
  };
  CaesuraOp in_c = {};
  in_c.size = sizeof(in_c);
  in_c.op_type = "InC";
  in_c.domain = "mine";
  in_c.provider = "FarExecutionProvider";
  in_c.compute = [](void*, void*, CaesuraContext* context) -> CaesuraStatus* {
    seen_by_c = PluginApi().op->stream(context);
    return nullptr;
  };
  SessionOptions options;
  options.providers = WithTestProvider({}, "FarExecutionProvider");
  options.custom_ops.ops = {probe("There", "FarExecutionProvider"), probe("Here", ""),
                            MakePluginOp(in_c).value()};
  auto model = ParseModelText(
      "<ir_version: 10, opset_import: [\"\" : 21, \"mine\" : 1]> g "
      "(float[N] x) => (float[N] a, float[N] b, float[M] c) {"
      " a = mine.There (x) b = mine.Here (x) c = mine.InC (x) }");
  auto session = Session::Create(std::move(model).value(), options);
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  ASSERT_TRUE((*session)->Run({{"x", Ramp(Shape{2})}}).ok());
  void* stream = options.providers[0]->stream();
  EXPECT_NE(stream, nullptr);
  EXPECT_EQ(seen->at("There"), stream);
  EXPECT_EQ(seen_by_c, stream);
  EXPECT_EQ(seen->at("Here"), nullptr);
}

TEST(PluginProvider, IsFoundByPathAndByName) {
  EXPECT_EQ(ProviderByName(kTestProvider).value()->name(), "TestExecutionProvider");
  EXPECT_EQ(ProviderByName(kCpuProviderName).value()->name(), kCpuProviderName);
  EXPECT_EQ(ProviderByName(kCpuProviderName, {{"a", "b"}}).status().code(),
            StatusCode::kInvalidArgument);
  const Status missing = ProviderByName("NowhereExecutionProvider").status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("libcaesura_nowhere.so"));
}

TEST(PluginProvider, DescriptionsMustBeComplete) {
  CaesuraProvider description = LoadPluginLibrary(kTestProvider).value().providers[0];
  description.run = nullptr;
  EXPECT_EQ(MakePluginProvider(description).status().code(), StatusCode::kUnsupported);
  description = LoadPluginLibrary(kTestProvider).value().providers[1];
  description.copy = nullptr;
  EXPECT_THAT(MakePluginProvider(description).status().message(), HasSubstr("but not all"));
}

}  // namespace
}  // namespace caesura::testing
