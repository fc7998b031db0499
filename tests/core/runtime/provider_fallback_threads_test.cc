// SPDX-License-Identifier: Apache-2.0
// Sessions whose provider fails while others run, and asynchronous runs. Also run under
// ThreadSanitizer (tests/run.sh), with tiny kernels.
#include <condition_variable>
#include <future>
#include <thread>

#include "core/kernels/kernel_registry.h"
#include "tests/core/runtime/faulty_session.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- asynchronous runs, threads ---

TEST(ProviderFallback, AsynchronousRuns) {
  const Values expected = Expected(kNet, Feeds());
  auto faulty = Faulty();
  const int calls = CallsOf(faulty);
  for (int k = 0; k < calls; ++k) {
    auto session = SessionOf(ModelOf(kNet), {faulty, Cpu()});
    faulty->FailAt(k);
    std::promise<Result<Values>> promise;
    ASSERT_TRUE(
        session->RunAsync(Feeds(), {}, [&](Result<Values> r) { promise.set_value(std::move(r)); })
            .ok());
    const Result<Values> results = promise.get_future().get();
    ASSERT_TRUE(results.ok()) << results.status().ToString();
    EXPECT_TRUE(SameBits(*results, expected));
    EXPECT_EQ(session->fallback().record()->provider, "faulty");
  }
  // Errors come the same way, and a session waits for what it has begun.
  std::atomic<int> done{0};
  {
    auto session = SessionOf(ModelOf(kNet), {Cpu()});
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(session
                      ->RunAsync(i % 2 ? Feeds() : NamedValues(), {"y"},
                                 [&, i](Result<Values> results) {
                                   if (results.ok() == (i % 2 == 1)) ++done;
                                 })
                      .ok());
    }
  }
  EXPECT_EQ(done, 20);
}

TEST(ProviderFallback, ManyThreadsShareOneFallback) {
  constexpr int kThreads = 8, kRuns = 20;
  constexpr char kBody[] =
      "(float[N,3] x) => (float[N,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}, float one = {1}> "
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
    EXPECT_THAT(session->fallback().provider_names(), ElementsAre(kCpuProviderName));
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
  auto cpu = std::make_shared<FailingProvider>(std::make_shared<TinyProvider>(nullptr, sqrt),
                                               kCpuProviderName);
  auto slow = std::make_shared<TinyProvider>(nullptr, more);
  auto session =
      SessionOf(ModelOf("(float[1] x) => (float[1] y) { s = Sqrt (x) y = Neg (s) }"), {slow, cpu});
  std::thread waits([&] {
    EXPECT_THAT(ToFloats(session->Run({{"x", Floats(Shape{1}, {1000})}}).value()[0]),
                ElementsAre(-17));
  });
  {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return entered; });
  }
  EXPECT_THAT(ToFloats(session->Run({{"x", Floats(Shape{1}, {-1})}}).value()[0]), ElementsAre(-4));
  EXPECT_EQ(session->fallback().record()->provider, "tiny");
  {
    std::lock_guard<std::mutex> lock(mutex);
    go_on = true;
  }
  changed.notify_all();
  waits.join();
  EXPECT_THAT(ToFloats(session->Run({{"x", Floats(Shape{1}, {1000})}}).value()[0]),
              ElementsAre(-4));
}

}  // namespace
}  // namespace caesura::testing
