// SPDX-License-Identifier: Apache-2.0
// Sessions whose provider fails: the run's results are those of the CPU, bit for bit; one fallback, one retry, and from
// then on nothing goes to the provider that failed. Also run under ThreadSanitizer (tests/run.sh), with tiny kernels.
#include "core/session/provider_fallback.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <thread>

#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Weights, a body, random numbers, an input passed through, and what is sized in the run.
constexpr char kNet[] = R"((float[2,3] x, bool c) => (float[2,2] y, float[2,3] r, float[2,3] same, int64[1,n] at)
    <float[3,2] w = {1, 2, 3, 4, 5, 6}, float[2,3] b = {0.5, 0, -1, 2, 0, 1}, int64[1] flat_to = {6}> {
  [fold] n = Neg (b)
  z = Mul (x, n)
  flat = Reshape (z, flat_to)
  at = NonZero (flat)
  f = If (c) <
    then_branch = t () => (float[2,3] p) { p = Add (z, x) },
    else_branch = e () => (float[2,3] q) { q = Sub (z, x) }
  >
  y = MatMul (f, w)
  r = RandomUniformLike (x)
  same = Identity (x)
})";

Model ModelOf(const std::string& body) {
  auto model = ParseModelText("<ir_version: 10, opset_import: [\"\" : 23, \"test\" : 1]> g " + body);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return *std::move(model);
}

NamedValues Feeds() { return {{"x", Ramp(Shape{2, 3})}, {"c", Tensor::Scalar<bool>(true)}}; }

std::shared_ptr<FailingProvider> Faulty(const std::string& name = "faulty") {
  return std::make_shared<FailingProvider>(std::make_shared<TinyProvider>(), name, /*scribbles=*/true);
}

// What a CPU session is given: what MakeCpuProvider makes is this, or has all of it.
std::shared_ptr<const ExecutionProvider> Cpu() {
  return std::make_shared<FailingProvider>(std::make_shared<TinyProvider>(), kCpuProviderName);
}

std::unique_ptr<Session> SessionOf(Model model, ProviderList providers, SessionOptions options = {}) {
  options.providers = std::move(providers);
  options.plan.threads = 1;
  options.seed = 5;
  auto session = Session::Create(std::move(model), std::move(options));
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  return session.ok() ? *std::move(session) : nullptr;
}

Values Expected(const std::string& body, const NamedValues& feeds, int run = 0) {
  auto session = SessionOf(ModelOf(body), {Cpu()});
  for (int i = 0; i < run; ++i) EXPECT_TRUE(session->Run(feeds).ok());
  return session->Run(feeds).value();
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Kernel calls of a session on kNet, up to the end of its first run.
int CallsOf(const std::shared_ptr<FailingProvider>& faulty) {
  faulty->FailAt(-1);
  auto session = SessionOf(ModelOf(kNet), {faulty, Cpu()});
  EXPECT_TRUE(session->Run(Feeds()).ok());
  EXPECT_FALSE(session->fallback_record());
  EXPECT_THAT(session->providers(), ElementsAre("faulty", kCpuProviderName));
  EXPECT_GE(faulty->calls(), 6);
  return faulty->calls();
}

TEST(ProviderFallback, AProviderThatFailsAtEachKernelCall) {
  const Values first = Expected(kNet, Feeds()), second = Expected(kNet, Feeds(), 1);
  auto faulty = Faulty();
  const int calls = CallsOf(faulty);
  for (int k = 0; k < calls; ++k) {
    SCOPED_TRACE("call " + std::to_string(k));
    auto session = SessionOf(ModelOf(kNet), {faulty, Cpu()});
    faulty->FailAt(k);
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(SameBits(session->Run(Feeds()).value(), first));
    EXPECT_EQ(faulty->calls(), k + 1);
    EXPECT_TRUE(SameBits(session->Run(Feeds()).value(), second));  // the next numbers, not those after
    EXPECT_EQ(faulty->calls(), k + 1);
    const std::string warning = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(Count(warning, "\n"), 1) << warning;
    const auto record = session->fallback_record();
    ASSERT_TRUE(record);
    EXPECT_EQ(record->provider, "faulty");
    EXPECT_THAT(record->cause, HasSubstr("PROVIDER_FAILURE: ["));
    EXPECT_THAT(record->cause, HasSubstr("on faulty] planted failure"));
    EXPECT_THAT(warning, HasSubstr(record->cause));
    EXPECT_FALSE(record->node.empty());
    EXPECT_EQ(record->runs_before, 0u);
    EXPECT_GT(record->milliseconds, 0);
    EXPECT_THAT(record->providers, ElementsAre(kCpuProviderName));
    EXPECT_THAT(session->providers(), ElementsAre(kCpuProviderName));
  }
}

TEST(ProviderFallback, TheRecordSaysWhereAndWhen) {
  auto faulty = Faulty();
  auto session = SessionOf(ModelOf("(float[2] x) => (float[2] y) { a = Neg (x) [inner] y = Add (a, x) }"), {faulty});
  const NamedValues feeds = {{"x", Ramp(Shape{2})}};
  const auto before = std::chrono::system_clock::now();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(session->Run(feeds).ok());
  faulty->FailAt(1);
  ASSERT_TRUE(session->Run(feeds).ok());
  const auto record = session->fallback_record();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->node, "Add 'inner'");
  EXPECT_EQ(record->phase, FallbackPhase::kRun);
  EXPECT_EQ(record->runs_before, 3u);
  EXPECT_GE(record->when, before);
  EXPECT_LE(record->when, std::chrono::system_clock::now());
}

TEST(ProviderFallback, BoundBuffersHoldTheRetrysResults) {
  const Values expected = Expected(kNet, Feeds());
  auto faulty = Faulty();
  const int calls = CallsOf(faulty);
  for (int k = 0; k < calls; ++k) {
    auto session = SessionOf(ModelOf(kNet), {faulty, Cpu()});
    RunOptions options;
    for (int i = 0; i < 3; ++i) options.fetch_buffers.push_back(expected[i].tensor().Clone().value());
    for (const Tensor& buffer : options.fetch_buffers) std::memset(buffer.raw(), 0x5a, buffer.bytes());
    faulty->FailAt(k);
    const Values results = session->Run(Feeds(), {}, options).value();
    EXPECT_TRUE(SameBits(results, expected)) << k;
    for (int i = 0; i < 3; ++i) EXPECT_EQ(results[i].tensor().raw(), options.fetch_buffers[i].raw());
    EXPECT_TRUE(session->fallback_record());
  }
}

TEST(ProviderFallback, FailuresWhileARunIsPlanned) {
  const Values expected = Expected(kNet, Feeds());
  auto faulty = Faulty();
  SessionOf(ModelOf(kNet), {faulty, Cpu()})->Run(Feeds()).value();
  const int created = faulty->created();
  ASSERT_GE(created, 6);
  for (int k = 0; k < created; ++k) {
    faulty->FailAtCreation(k);
    auto session = SessionOf(ModelOf(kNet), {faulty, Cpu()});
    EXPECT_TRUE(SameBits(session->Run(Feeds()).value(), expected)) << k;
    ASSERT_TRUE(session->fallback_record()) << k;
    EXPECT_THAT(session->fallback_record()->cause, HasSubstr("planted failure of a factory"));
    EXPECT_EQ(faulty->created(), k + 1);
  }
  // In folding, by a plan that is asked for without a run.
  faulty->FailAtCreation(-1);
  faulty->FailAt(0);
  auto session = SessionOf(ModelOf(kNet), {faulty, Cpu()});
  ASSERT_TRUE(session->Plan(Feeds()).ok());
  EXPECT_EQ(session->fallback_record()->phase, FallbackPhase::kCompile);
  EXPECT_EQ(session->fallback_record()->node, "Neg 'fold'");
}

// A pass that fails where its providers are not the CPU's alone.
class CompilingPass : public Pass {
 public:
  CompilingPass(const ProviderList& providers, int* runs) : fails_(providers.front()->name() != kCpuProviderName), runs_(runs) {}
  const char* name() const override { return "compiling"; }
  Result<bool> Run(Model&) override {
    ++*runs_;
    if (fails_) return ProviderFailure("planted failure of a compiler");
    return false;
  }

 private:
  bool fails_;
  int* runs_;
};

TEST(ProviderFallback, FailuresWhileASessionIsMade) {
  int runs = 0;
  SessionOptions options;
  options.passes = [&](const ProviderList& providers) {
    return PassList{std::make_shared<CompilingPass>(providers, &runs)};
  };
  auto session = SessionOf(ModelOf(kNet), {Faulty(), Cpu()}, options);
  EXPECT_EQ(runs, 2);
  ASSERT_TRUE(session->fallback_record());
  EXPECT_EQ(session->fallback_record()->phase, FallbackPhase::kCreate);
  EXPECT_EQ(session->fallback_record()->provider, "faulty");
  EXPECT_THAT(session->fallback_record()->cause, HasSubstr("pass 'compiling': planted failure of a compiler"));
  EXPECT_TRUE(SameBits(session->Run(Feeds()).value(), Expected(kNet, Feeds())));
  options.fallback = false;
  options.providers = {Faulty(), Cpu()};
  EXPECT_EQ(Session::Create(ModelOf(kNet), options).status().code(), StatusCode::kProviderFailure);
}

TEST(ProviderFallback, WeightsAreSharedNotReadAgain) {
  Model model = ModelOf(kNet);
  const void* w = model.graph->Initializer(model.graph->FindValue("w"))->raw();
  auto faulty = Faulty();
  auto session = SessionOf(std::move(model), {faulty, Cpu()});
  auto addresses = [&] {
    std::vector<const void*> out;
    for (const Tensor& constant : session->Plan(Feeds()).value()->constants()) out.push_back(constant.raw());
    return out;
  };
  EXPECT_THAT(addresses(), ::testing::Contains(w));
  faulty->FailAt(2);
  ASSERT_TRUE(session->Run(Feeds()).ok());
  EXPECT_THAT(addresses(), ::testing::Contains(w));
  EXPECT_EQ(session->fallback_record()->shared_bytes, 12 * sizeof(float) + sizeof(int64_t));
  EXPECT_EQ(session->fallback_record()->bytes, 6 * sizeof(float));  // n is folded anew
}

// --- when not ---

TEST(ProviderFallback, NothingRetriesWhereItIsDisabled) {
  auto faulty = Faulty();
  auto session = SessionOf(ModelOf(kNet), {faulty, Cpu()});
  ASSERT_TRUE(session->Run(Feeds()).ok());
  session->DisableFallback();
  for (int round = 0; round < 2; ++round) {
    faulty->FailAt(1);
    EXPECT_EQ(session->Run(Feeds()).status().code(), StatusCode::kProviderFailure);
    EXPECT_EQ(faulty->calls(), 2);
    EXPECT_THAT(session->providers(), ElementsAre("faulty", kCpuProviderName));
    EXPECT_FALSE(session->fallback_record());
  }
  faulty->FailAt(-1);
  EXPECT_TRUE(session->Run(Feeds()).ok());  // still there
  EXPECT_GT(faulty->calls(), 2);
  session->EnableFallback();
  faulty->FailAt(1);
  EXPECT_TRUE(session->Run(Feeds()).ok());
  EXPECT_THAT(session->providers(), ElementsAre(kCpuProviderName));
}

TEST(ProviderFallback, OtherErrorsNeverRetry) {
  FailingAllocator memory;
  for (Status error : {InvalidArgument("bad index"), Unsupported("no such mode"), OutOfMemory("no host memory"),
                       Internal("a bug"), IoError("disk"), Cancelled("stop")}) {
    int calls = 0;
    auto more = [&](KernelRegistry& registry) {
      auto create = [&](KernelInfo& info) {
        info.SetOutput(0, DType::kFloat32, info.InputShape(0));
        info.SetCompute([&](KernelContext&) { return ++calls, error; });
        return Status();
      };
      registry.Add({.op_type = "Sqrt", .create = create});
    };
    ProviderList providers = {std::make_shared<TinyProvider>(&memory, more), Cpu()};
    auto session = SessionOf(ModelOf("(float[2] x) => (float[2] y) { y = Sqrt (x) }"), providers);
    EXPECT_EQ(session->Run({{"x", Ramp(Shape{2})}}).status().code(), error.code());
    EXPECT_EQ(calls, 1);
    memory.FailAfter(0);
    EXPECT_EQ(session->Run({{"x", Ramp(Shape{2})}}).status().code(), StatusCode::kOutOfMemory);
    memory.Heal();
    EXPECT_EQ(session->Run({{"y", Ramp(Shape{2})}}).status().code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(session->fallback_record());
  }
}

TEST(ProviderFallback, ACpuSessionNeverRetries) {
  auto cpu = std::make_shared<FailingProvider>(std::make_shared<TinyProvider>(), kCpuProviderName);
  auto session = SessionOf(ModelOf(kNet), {cpu});
  ASSERT_TRUE(session->Run(Feeds()).ok());
  cpu->FailAt(0);
  EXPECT_EQ(session->Run(Feeds()).status().code(), StatusCode::kProviderFailure);
  EXPECT_EQ(cpu->calls(), 1);
  EXPECT_FALSE(session->fallback_record());
}

// One kernel, test.Twice.
class OneKernel : public ExecutionProvider {
 public:
  explicit OneKernel(ComputeFunction compute) {
    kernels_.Add({.op_type = "Twice", .domain = "test", .create = [compute](KernelInfo& info) {
                    info.SetOutput(0, DType::kFloat32, info.InputShape(0));
                    info.SetCompute(compute);
                    return Status();
                  }});
  }
  const std::string& name() const override { return name_; }
  Device device() const override { return {}; }
  const KernelRegistry& kernels() const override { return kernels_; }
  Allocator& allocator() const override { return HostAllocator(); }

 private:
  std::string name_ = "one";
  KernelRegistry kernels_;
};

TEST(ProviderFallback, TheCpusOwnFailureIsNobodyElses) {
  auto cpu = std::make_shared<FailingProvider>(std::make_shared<TinyProvider>(), kCpuProviderName);
  auto one = std::make_shared<OneKernel>([](KernelContext& context) -> Status {
    *context.Output<float>(0) = 2 * *context.Input<float>(0);
    return {};
  });
  auto session = SessionOf(ModelOf("(float[1] x) => (float[1] y) { t = test.Twice (x) y = Neg (t) }"), {one, cpu});
  cpu->FailAt(0);
  EXPECT_EQ(session->Run({{"x", Ramp(Shape{1})}}).status().code(), StatusCode::kProviderFailure);
  EXPECT_FALSE(session->fallback_record());
  cpu->FailAt(-1);
  EXPECT_THAT(ToFloats(session->Run({{"x", Floats(Shape{1}, {3})}}).value()[0]), ElementsAre(-6));
}

// --- which providers remain ---

TEST(ProviderFallback, TheListNeverHoldsTheProviderThatFailed) {
  auto first = Faulty("TensorRT"), cuda = Faulty(kCudaProviderName);
  auto session = SessionOf(ModelOf(kNet), {first, cuda, Cpu()});
  first->FailAt(3);
  EXPECT_TRUE(SameBits(session->Run(Feeds()).value(), Expected(kNet, Feeds())));
  EXPECT_THAT(session->providers(), ElementsAre(kCudaProviderName, kCpuProviderName));
  EXPECT_GT(cuda->calls(), 0);

  auto only = Faulty(kCudaProviderName);
  auto second = SessionOf(ModelOf(kNet), {only, Faulty("TensorRT"), Cpu()});
  only->FailAt(3);
  EXPECT_TRUE(SameBits(second->Run(Feeds()).value(), Expected(kNet, Feeds())));
  EXPECT_THAT(second->providers(), ElementsAre(kCpuProviderName));
}

TEST(ProviderFallback, AGpuBehindAnotherProviderIsKept) {
  auto first = Faulty("TensorRT"), cuda = Faulty(kCudaProviderName);
  auto session = SessionOf(ModelOf("(float[2] x) => (float[2] y) { y = Neg (x) }"), {first, cuda});
  first->FailAt(0);
  EXPECT_THAT(ToFloats(session->Run({{"x", Floats(Shape{2}, {1, 2})}}).value()[0]), ElementsAre(-1, -2));
  EXPECT_EQ(session->providers().front(), kCudaProviderName);
  EXPECT_EQ(session->providers().size(), 2u);
  EXPECT_EQ(cuda->calls(), 1);
}

TEST(ProviderFallback, ASecondFailureNamesTheFirstCause) {
  auto first = Faulty("TensorRT"), cuda = Faulty(kCudaProviderName);
  auto session = SessionOf(ModelOf("(float[N] x) => (float[N] y) { [op] y = Neg (x) }"), {first, cuda, Cpu()});
  first->FailAt(0);
  cuda->FailAt(0);
  const NamedValues feeds = {{"x", Ramp(Shape{2})}};
  const Status twice = session->Run(feeds).status();
  EXPECT_EQ(twice.code(), StatusCode::kProviderFailure);
  EXPECT_THAT(twice.message(), HasSubstr("[Neg 'op' on TensorRT] planted failure"));
  EXPECT_EQ(Count(twice.message(), "planted failure"), 1) << twice.message();
  cuda->FailAt(-1);
  EXPECT_TRUE(session->Run(feeds).ok());  // the session stays where it is
  EXPECT_EQ(first->calls(), 1);
  cuda->FailAtCreation(0);  // of another plan: there is no second fallback
  const Status later = session->Run({{"x", Ramp(Shape{3})}}).status();
  EXPECT_EQ(later.code(), StatusCode::kProviderFailure);
  EXPECT_THAT(later.message(), HasSubstr("on CUDAExecutionProvider] planted failure of a factory"));
  EXPECT_THAT(later.message(), HasSubstr("on TensorRT] planted failure"));
  EXPECT_THAT(session->providers(), ElementsAre(kCudaProviderName, kCpuProviderName));
}

TEST(ProviderFallback, WhatTheCpuCannotRunIsAnErrorThatNamesTheCause) {
  bool fails = true;
  auto one = std::make_shared<OneKernel>([&](KernelContext&) { return fails ? ProviderFailure("too hot") : Status(); });
  auto session = SessionOf(ModelOf("(float[1] x) => (float[1] y) { y = test.Twice (x) }"), {one, Cpu()});
  const Status status = session->Run({{"x", Ramp(Shape{1})}}).status();
  EXPECT_EQ(status.code(), StatusCode::kProviderFailure);
  EXPECT_THAT(status.message(), HasSubstr("on one] too hot; and CPUExecutionProvider cannot stand in: UNSUPPORTED"));
  EXPECT_FALSE(session->fallback_record());
  fails = false;
  EXPECT_TRUE(session->Run({{"x", Ramp(Shape{1})}}).ok());  // nothing has changed
}

// --- providers that are made with the session ---

ProviderRequest Makes(std::shared_ptr<const ExecutionProvider> provider) {
  return {provider->name(), [provider]() -> Result<std::shared_ptr<const ExecutionProvider>> { return provider; }};
}
ProviderRequest Refuses(const std::string& name, Status status) {
  return {name, [status]() -> Result<std::shared_ptr<const ExecutionProvider>> { return status; }};
}

Result<std::unique_ptr<Session>> Requested(std::vector<ProviderRequest> requests, bool fallback = true) {
  SessionOptions options;
  options.requested_providers = std::move(requests);
  options.fallback = fallback;
  options.seed = 5;
  return Session::Create(ModelOf(kNet), options);
}

TEST(ProviderFallback, AProviderThatCannotBeLoadedIsAnErrorWhereFallbackIsDisabled) {
  const ProviderRequest gone = Refuses("TensorRT", ProviderFailure("no device"));
  const auto disabled = Requested({gone, Makes(Cpu())}, false);
  EXPECT_EQ(disabled.status().code(), StatusCode::kProviderFailure);
  EXPECT_EQ(disabled.status().message(), "provider TensorRT: no device");

  auto cuda = Faulty(kCudaProviderName);
  auto session = Requested({gone, Makes(cuda), Makes(Cpu())}).value();
  EXPECT_THAT(session->providers(), ElementsAre(kCudaProviderName, kCpuProviderName));
  EXPECT_EQ(session->fallback_record()->provider, "TensorRT");
  EXPECT_EQ(session->fallback_record()->phase, FallbackPhase::kCreate);
  EXPECT_TRUE(SameBits(session->Run(Feeds()).value(), Expected(kNet, Feeds())));
  // A device that is busy, and another one that is not there: the CPU.
  auto host = Requested({gone, Refuses(kCudaProviderName, ProviderFailure("busy")), Makes(Cpu())}).value();
  EXPECT_THAT(host->providers(), ElementsAre(kCpuProviderName));
  EXPECT_THAT(host->fallback_record()->cause, HasSubstr("no device"));
}

TEST(ProviderFallback, MistakesInOptionsAreNotHidden) {
  for (Status mistake : {InvalidArgument("no option 'tread_count'"), NotFound("no provider of this name"),
                         Unsupported("built without it"), InvalidModel("bad cache file")}) {
    const auto session = Requested({Refuses("TensorRT", mistake), Makes(Cpu())});
    EXPECT_EQ(session.status().code(), mistake.code());
    EXPECT_THAT(session.status().message(), HasSubstr("provider TensorRT: " + mistake.message()));
  }
}

// --- asynchronous runs, threads ---

TEST(ProviderFallback, AsynchronousRuns) {
  const Values expected = Expected(kNet, Feeds());
  auto faulty = Faulty();
  const int calls = CallsOf(faulty);
  for (int k = 0; k < calls; ++k) {
    auto session = SessionOf(ModelOf(kNet), {faulty, Cpu()});
    faulty->FailAt(k);
    std::promise<Result<Values>> promise;
    ASSERT_TRUE(session->RunAsync(Feeds(), {}, [&](Result<Values> r) { promise.set_value(std::move(r)); }).ok());
    const Result<Values> results = promise.get_future().get();
    ASSERT_TRUE(results.ok()) << results.status().ToString();
    EXPECT_TRUE(SameBits(*results, expected));
    EXPECT_EQ(session->fallback_record()->provider, "faulty");
  }
  // Errors come the same way, and a session waits for what it has begun.
  std::atomic<int> done{0};
  {
    auto session = SessionOf(ModelOf(kNet), {Cpu()});
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(session->RunAsync(i % 2 ? Feeds() : NamedValues(), {"y"}, [&, i](Result<Values> results) {
        if (results.ok() == (i % 2 == 1)) ++done;
      }).ok());
    }
  }
  EXPECT_EQ(done, 20);
}

TEST(ProviderFallback, ManyThreadsShareOneFallback) {
  constexpr int kThreads = 8, kRuns = 20;
  constexpr char kBody[] = "(float[N,3] x) => (float[N,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}, float one = {1}> "
                           "{ a = Neg (x) s = Add (a, one) t = Mul (s, a) y = MatMul (t, w) }";
  std::vector<Values> expected;
  for (int64_t n = 1; n <= 3; ++n) expected.push_back(Expected(kBody, {{"x", Ramp(Shape{n, 3})}}));
  for (int round = 0; round < 12; ++round) {
    auto faulty = Faulty();
    std::atomic<int> programs{0}, right{0};
    SessionOptions options;
    options.passes = [&](const ProviderList&) { return ++programs, PassList(); };
    auto session = SessionOf(ModelOf(kBody), {faulty, Cpu()}, options);
    faulty->FailAt((round * 37) % (kThreads * 12), /*and_later=*/round % 2 == 0);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int run = 0; run < kRuns; ++run) {
          const int64_t n = (t + run) % 3 + 1;
          const NamedValues feeds = {{"x", Ramp(Shape{n, 3})}};
          if (run % 4 == 3) {
            std::promise<bool> promise;
            const Status begun = session->RunAsync(feeds, {}, [&](Result<Values> results) {
              promise.set_value(results.ok() && SameBits(*results, expected[n - 1]));
            });
            if (begun.ok() && promise.get_future().get()) ++right;
          } else {
            auto results = session->Run(feeds);
            if (results.ok() && SameBits(*results, expected[n - 1])) ++right;
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(right, kThreads * kRuns) << round;
    EXPECT_EQ(programs, 2) << round;
    EXPECT_THAT(session->providers(), ElementsAre(kCpuProviderName));
    const int calls = faulty->calls();
    EXPECT_TRUE(session->Run({{"x", Ramp(Shape{2, 3})}}).ok());
    EXPECT_EQ(faulty->calls(), calls);
  }
}

TEST(ProviderFallback, RunsInFlightEndOnTheOldPlansOrRetry) {
  std::mutex mutex;
  std::condition_variable changed;
  bool entered = false, go_on = false;
  auto more = [&](KernelRegistry& registry) {
    registry.Add({.op_type = "Sqrt", .create = [&](KernelInfo& info) {
                    info.SetOutput(0, DType::kFloat32, info.InputShape(0));
                    info.SetCompute([&](KernelContext& context) -> Status {
                      const float x = *context.Input<float>(0);
                      if (x < 0) return ProviderFailure("negative numbers are too much");
                      if (x > 100) {
                        std::unique_lock<std::mutex> lock(mutex);
                        entered = true;
                        changed.notify_all();
                        changed.wait(lock, [&] { return go_on; });
                      }
                      *context.Output<float>(0) = 17;
                      return {};
                    });
                    return Status();
                  }});
  };
  auto sqrt = [](KernelRegistry& registry) {
    registry.Add({.op_type = "Sqrt", .create = [](KernelInfo& info) {
                    info.SetOutput(0, DType::kFloat32, info.InputShape(0));
                    info.SetCompute([](KernelContext& context) { *context.Output<float>(0) = 4; });
                    return Status();
                  }});
  };
  auto cpu = std::make_shared<FailingProvider>(std::make_shared<TinyProvider>(nullptr, sqrt), kCpuProviderName);
  auto slow = std::make_shared<TinyProvider>(nullptr, more);
  auto session = SessionOf(ModelOf("(float[1] x) => (float[1] y) { s = Sqrt (x) y = Neg (s) }"), {slow, cpu});
  std::thread waits([&] {
    EXPECT_THAT(ToFloats(session->Run({{"x", Floats(Shape{1}, {1000})}}).value()[0]), ElementsAre(-17));
  });
  {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return entered; });
  }
  EXPECT_THAT(ToFloats(session->Run({{"x", Floats(Shape{1}, {-1})}}).value()[0]), ElementsAre(-4));
  EXPECT_EQ(session->fallback_record()->provider, "tiny");
  {
    std::lock_guard<std::mutex> lock(mutex);
    go_on = true;
  }
  changed.notify_all();
  waits.join();
  EXPECT_THAT(ToFloats(session->Run({{"x", Floats(Shape{1}, {1000})}}).value()[0]), ElementsAre(-4));
}

}  // namespace
}  // namespace caesura::testing
