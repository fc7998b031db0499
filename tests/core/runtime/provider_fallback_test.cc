// SPDX-License-Identifier: Apache-2.0
// Sessions whose provider fails: the run's results are those of the CPU, bit for bit; one fallback,
// one retry, and from then on nothing goes to the provider that failed.
#include "core/graph/pass.h"
#include "core/kernels/kernel_registry.h"
#include "core/runtime/provider_fallback.h"

#include "core/providers/cuda/cuda_provider.h"
#include "tests/core/runtime/faulty_session.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
    EXPECT_TRUE(
        SameBits(session->Run(Feeds()).value(), second));  // the next numbers, not those after
    EXPECT_EQ(faulty->calls(), k + 1);
    const std::string warning = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(Count(warning, "\n"), 1) << warning;
    const auto record = session->fallback().record();
    ASSERT_TRUE(record);
    EXPECT_EQ(record->provider, "faulty");
    EXPECT_THAT(record->cause, HasSubstr("PROVIDER_FAILURE: ["));
    EXPECT_THAT(record->cause, HasSubstr("on faulty] planted failure"));
    EXPECT_THAT(warning, HasSubstr(record->cause));
    EXPECT_FALSE(record->node.empty());
    EXPECT_EQ(record->runs_before, 0u);
    EXPECT_GT(record->milliseconds, 0);
    EXPECT_THAT(record->providers, ElementsAre(kCpuProviderName));
    EXPECT_THAT(session->fallback().provider_names(), ElementsAre(kCpuProviderName));
  }
}

TEST(ProviderFallback, TheRecordSaysWhereAndWhen) {
  auto faulty = Faulty();
  auto session = SessionOf(
      ModelOf("(float[2] x) => (float[2] y) { a = Neg (x) [inner] y = Add (a, x) }"), {faulty});
  const NamedValues feeds = {{"x", Ramp(Shape{2})}};
  const auto before = std::chrono::system_clock::now();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(session->Run(feeds).ok());
  ASSERT_TRUE(session->Plan(feeds).ok());  // no run
  faulty->FailAt(1);
  ASSERT_TRUE(session->Run(feeds).ok());
  const auto record = session->fallback().record();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->node, "Add 'inner'");
  EXPECT_EQ(record->stage, FallbackStage::kRun);
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
    for (int i = 0; i < 3; ++i)
      options.fetch_buffers.push_back(expected[i].tensor().Clone().value());
    for (const Tensor& buffer : options.fetch_buffers)
      std::memset(buffer.raw(), 0x5a, buffer.bytes());
    faulty->FailAt(k);
    const Values results = session->Run(Feeds(), {}, options).value();
    EXPECT_TRUE(SameBits(results, expected)) << k;
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(results[i].tensor().raw(), options.fetch_buffers[i].raw());
    EXPECT_TRUE(session->fallback().record());
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
    ASSERT_TRUE(session->fallback().record()) << k;
    EXPECT_THAT(session->fallback().record()->cause, HasSubstr("planted failure of a factory"));
    EXPECT_EQ(faulty->created(), k + 1);
  }
  // In folding, by a plan that is asked for without a run.
  faulty->FailAtCreation(-1);
  faulty->FailAt(0);
  auto session = SessionOf(ModelOf(kNet), {faulty, Cpu()});
  ASSERT_TRUE(session->Plan(Feeds()).ok());
  EXPECT_EQ(session->fallback().record()->stage, FallbackStage::kCompile);
  EXPECT_EQ(session->fallback().record()->node, "Neg 'fold'");
}

// A pass that fails where its providers are not the CPU's alone.
class CompilingPass : public Pass {
 public:
  CompilingPass(const ProviderList& providers, int* runs)
      : fails_(providers.front()->name() != kCpuProviderName), runs_(runs) {}
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
  ASSERT_TRUE(session->fallback().record());
  EXPECT_EQ(session->fallback().record()->stage, FallbackStage::kCreate);
  EXPECT_EQ(session->fallback().record()->provider, "faulty");
  EXPECT_THAT(session->fallback().record()->cause,
              HasSubstr("pass 'compiling': planted failure of a compiler"));
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
    for (const Tensor& constant : session->Plan(Feeds()).value()->constants())
      out.push_back(constant.raw());
    return out;
  };
  EXPECT_THAT(addresses(), ::testing::Contains(w));
  faulty->FailAt(2);
  ASSERT_TRUE(session->Run(Feeds()).ok());
  EXPECT_THAT(addresses(), ::testing::Contains(w));
  EXPECT_EQ(session->fallback().record()->shared_bytes, 12 * sizeof(float) + sizeof(int64_t));
  EXPECT_EQ(session->fallback().record()->bytes, 6 * sizeof(float));  // n is folded anew
}

// --- when not ---

TEST(ProviderFallback, NothingRetriesWhereItIsDisabled) {
  auto faulty = Faulty();
  auto session = SessionOf(ModelOf(kNet), {faulty, Cpu()});
  ASSERT_TRUE(session->Run(Feeds()).ok());
  session->fallback().set_enabled(false);
  for (int round = 0; round < 2; ++round) {
    faulty->FailAt(1);
    EXPECT_EQ(session->Run(Feeds()).status().code(), StatusCode::kProviderFailure);
    EXPECT_EQ(faulty->calls(), 2);
    EXPECT_THAT(session->fallback().provider_names(), ElementsAre("faulty", kCpuProviderName));
    EXPECT_FALSE(session->fallback().record());
  }
  faulty->FailAt(-1);
  EXPECT_TRUE(session->Run(Feeds()).ok());  // still there
  EXPECT_GT(faulty->calls(), 2);
  session->fallback().set_enabled(true);
  faulty->FailAt(1);
  EXPECT_TRUE(session->Run(Feeds()).ok());
  EXPECT_THAT(session->fallback().provider_names(), ElementsAre(kCpuProviderName));
}

TEST(ProviderFallback, OtherErrorsNeverRetry) {
  FailingAllocator memory;
  for (Status error :
       {InvalidArgument("bad index"), Unsupported("no such mode"), OutOfMemory("no host memory"),
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
    EXPECT_FALSE(session->fallback().record());
  }
}

TEST(ProviderFallback, ACpuSessionNeverRetries) {
  auto cpu = std::make_shared<FailingProvider>(std::make_shared<TinyProvider>(), kCpuProviderName);
  auto session = SessionOf(ModelOf(kNet), {cpu});
  ASSERT_TRUE(session->Run(Feeds()).ok());
  cpu->FailAt(0);
  EXPECT_EQ(session->Run(Feeds()).status().code(), StatusCode::kProviderFailure);
  EXPECT_EQ(cpu->calls(), 1);
  EXPECT_FALSE(session->fallback().record());
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
  auto session = SessionOf(
      ModelOf("(float[1] x) => (float[1] y) { t = test.Twice (x) y = Neg (t) }"), {one, cpu});
  cpu->FailAt(0);
  EXPECT_EQ(session->Run({{"x", Ramp(Shape{1})}}).status().code(), StatusCode::kProviderFailure);
  EXPECT_FALSE(session->fallback().record());
  cpu->FailAt(-1);
  EXPECT_THAT(ToFloats(session->Run({{"x", Floats(Shape{1}, {3})}}).value()[0]), ElementsAre(-6));
}

// --- which providers remain ---

TEST(ProviderFallback, TheListNeverHoldsTheProviderThatFailed) {
  auto first = Faulty("TensorRT"), cuda = Faulty(kCudaProviderName);
  auto session = SessionOf(ModelOf(kNet), {first, cuda, Cpu()});
  first->FailAt(3);
  EXPECT_TRUE(SameBits(session->Run(Feeds()).value(), Expected(kNet, Feeds())));
  EXPECT_THAT(session->fallback().provider_names(),
              ElementsAre(kCudaProviderName, kCpuProviderName));
  EXPECT_GT(cuda->calls(), 0);

  auto only = Faulty(kCudaProviderName);
  auto second = SessionOf(ModelOf(kNet), {only, Faulty("TensorRT"), Cpu()});
  only->FailAt(3);
  EXPECT_TRUE(SameBits(second->Run(Feeds()).value(), Expected(kNet, Feeds())));
  EXPECT_THAT(second->fallback().provider_names(), ElementsAre(kCpuProviderName));
}

TEST(ProviderFallback, AGpuBehindAnotherProviderIsKept) {
  auto first = Faulty("TensorRT"), cuda = Faulty(kCudaProviderName);
  auto session = SessionOf(ModelOf("(float[2] x) => (float[2] y) { y = Neg (x) }"), {first, cuda});
  first->FailAt(0);
  EXPECT_THAT(ToFloats(session->Run({{"x", Floats(Shape{2}, {1, 2})}}).value()[0]),
              ElementsAre(-1, -2));
  EXPECT_EQ(session->fallback().provider_names().front(), kCudaProviderName);
  EXPECT_EQ(session->fallback().provider_names().size(), 2u);
  EXPECT_EQ(cuda->calls(), 1);
}

TEST(ProviderFallback, ASecondFailureNamesTheFirstCause) {
  auto first = Faulty("TensorRT"), cuda = Faulty(kCudaProviderName);
  auto session =
      SessionOf(ModelOf("(float[N] x) => (float[N] y) { [op] y = Neg (x) }"), {first, cuda, Cpu()});
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
  EXPECT_THAT(session->fallback().provider_names(),
              ElementsAre(kCudaProviderName, kCpuProviderName));
}

TEST(ProviderFallback, WhatTheCpuCannotRunIsAnErrorThatNamesTheCause) {
  bool fails = true;
  auto one = std::make_shared<OneKernel>(
      [&](KernelContext&) { return fails ? ProviderFailure("too hot") : Status(); });
  auto session =
      SessionOf(ModelOf("(float[1] x) => (float[1] y) { y = test.Twice (x) }"), {one, Cpu()});
  const Status status = session->Run({{"x", Ramp(Shape{1})}}).status();
  EXPECT_EQ(status.code(), StatusCode::kProviderFailure);
  EXPECT_THAT(status.message(),
              HasSubstr("on one] too hot; and CPUExecutionProvider cannot stand in: UNSUPPORTED"));
  EXPECT_FALSE(session->fallback().record());
  fails = false;
  EXPECT_TRUE(session->Run({{"x", Ramp(Shape{1})}}).ok());  // nothing has changed
}

// --- providers that are made with the session ---

ProviderRequest Makes(std::shared_ptr<const ExecutionProvider> provider) {
  return {provider->name(),
          [provider]() -> Result<std::shared_ptr<const ExecutionProvider>> { return provider; }};
}
ProviderRequest Refuses(const std::string& name, Status status) {
  return {name, [status]() -> Result<std::shared_ptr<const ExecutionProvider>> { return status; }};
}

Result<std::unique_ptr<Session>> Requested(std::vector<ProviderRequest> requests,
                                           bool fallback = true) {
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
  EXPECT_THAT(session->fallback().provider_names(),
              ElementsAre(kCudaProviderName, kCpuProviderName));
  EXPECT_EQ(session->fallback().record()->provider, "TensorRT");
  EXPECT_EQ(session->fallback().record()->stage, FallbackStage::kCreate);
  EXPECT_TRUE(SameBits(session->Run(Feeds()).value(), Expected(kNet, Feeds())));
  // A device that is busy, and another one that is not there: the CPU.
  auto host =
      Requested({gone, Refuses(kCudaProviderName, ProviderFailure("busy")), Makes(Cpu())}).value();
  EXPECT_THAT(host->fallback().provider_names(), ElementsAre(kCpuProviderName));
  EXPECT_THAT(host->fallback().record()->cause, HasSubstr("no device"));
}

TEST(ProviderFallback, MistakesInOptionsAreNotHidden) {
  for (Status mistake :
       {InvalidArgument("no option 'tread_count'"), NotFound("no provider of this name"),
        Unsupported("built without it"), InvalidModel("bad cache file")}) {
    const auto session = Requested({Refuses("TensorRT", mistake), Makes(Cpu())});
    EXPECT_EQ(session.status().code(), mistake.code());
    EXPECT_THAT(session.status().message(), HasSubstr("provider TensorRT: " + mistake.message()));
  }
}

}  // namespace
}  // namespace caesura::testing
