// SPDX-License-Identifier: Apache-2.0
// Bound runs on the host. Also run under ThreadSanitizer (tests/run.sh), so: one OpenMP thread per
// kernel.
#include "core/session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using Overlap = IoBinding::Overlap;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Session> BindableSession(const std::string& body, ProviderList providers = Tiny()) {
  auto model =
      ParseModelText("<ir_version: 10, opset_import: [\"\" : 23, \"test\" : 1]> g " + body);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  SessionOptions options;
  options.providers = std::move(providers);
  options.threads = 1;
  return Session::Create(*std::move(model), options).value();
}

Tensor FloatsIn(std::vector<float>& values) {
  return Tensor::Borrow(DType::kFloat32, Shape{static_cast<int64_t>(values.size())}, values.data());
}

// s = x + b, n = -s
constexpr char kSumAndNegation[] =
    "(float[N] x, float[N] b) => (float[N] s, float[N] n) { s = Add (x, b) n = Neg (s) }";
// A cache that grows by what is fed.
constexpr char kDecoder[] = R"((float[P] past, float[N] x) => (float[T] present, float[T] y) {
  present = Concat <axis = 0> (past, x)
  y = Neg (present)
})";

TEST(IoBinding, ResultsComeInTheOrderOfTheBindings) {
  auto session = BindableSession(kSumAndNegation);
  IoBinding binding(*session);
  std::vector<float> x = {1, 2}, b = {10, 20}, n = {0, 0};
  ASSERT_TRUE(binding.BindInput("b", FloatsIn(b)).ok());
  ASSERT_TRUE(binding.BindInput("x", FloatsIn(x)).ok());
  ASSERT_TRUE(binding.BindOutput("n", FloatsIn(n)).ok());
  ASSERT_TRUE(binding.BindOutput("s").ok());
  EXPECT_THAT(binding.output_names(), ElementsAre("n", "s"));
  Values results = session->Run(binding).value();
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].tensor().raw(), n.data());
  EXPECT_THAT(n, ElementsAre(-11, -22));
  EXPECT_THAT(ToFloats(results[1]), ElementsAre(11, 22));
  ASSERT_TRUE(binding.BindOutput("n").ok());  // again: in its old place, a fresh buffer now
  results = session->Run(binding).value();
  EXPECT_NE(results[0].tensor().raw(), n.data());
  EXPECT_THAT(ToFloats(results[0]), ElementsAre(-11, -22));
  binding.ClearOutputs();
  ASSERT_TRUE(binding.BindOutput("s").ok());
  EXPECT_EQ(session->Run(binding).value().size(), 1u);
}

TEST(IoBinding, ASecondRunWithTheSameBindingTakesAnotherShape) {
  auto session = BindableSession(kSumAndNegation);
  IoBinding binding(*session);
  ASSERT_TRUE(binding.BindOutput("s").ok());
  for (int64_t n : {2, 5, 1, 2}) {
    ASSERT_TRUE(binding.BindInput("x", Ramp(Shape{n})).ok());
    ASSERT_TRUE(binding.BindInput("b", Ramp(Shape{n})).ok());
    for (int again = 0; again < 2; ++again) {
      auto results = session->Run(binding);
      ASSERT_TRUE(results.ok()) << results.status().ToString();
      EXPECT_TRUE(SameBits((*results)[0], Ramp(Shape{n}, 0.5f)));
    }
  }
}

TEST(IoBinding, ValuesWrittenAfterTheBindingAreSeen) {
  auto session = BindableSession(kSumAndNegation);
  IoBinding binding(*session);
  std::vector<float> x = {1, 2}, b = {10, 20};
  ASSERT_TRUE(binding.BindInput("x", FloatsIn(x)).ok());
  ASSERT_TRUE(binding.BindInput("b", FloatsIn(b)).ok());
  ASSERT_TRUE(binding.BindOutput("s").ok());
  EXPECT_THAT(ToFloats(session->Run(binding).value()[0]), ElementsAre(11, 22));
  x = {3, 4};
  EXPECT_THAT(ToFloats(session->Run(binding).value()[0]), ElementsAre(13, 24));
}

TEST(IoBinding, AConsumerKeepsItsOutputWhileTheNextRunGoes) {
  auto session = BindableSession(kSumAndNegation);
  IoBinding binding(*session);
  std::vector<float> x = {1, 2}, b = {10, 20};
  ASSERT_TRUE(binding.BindInput("x", FloatsIn(x)).ok());
  ASSERT_TRUE(binding.BindInput("b", FloatsIn(b)).ok());
  ASSERT_TRUE(binding.BindOutput("n").ok());
  const Values first = session->Run(binding).value();
  x = {100, 200};
  const Values second = session->Run(binding).value();
  EXPECT_THAT(ToFloats(first[0]), ElementsAre(-11, -22));
  EXPECT_THAT(ToFloats(second[0]), ElementsAre(-110, -220));
}

TEST(IoBinding, ABufferServesOneShapeAndSaysSoForOthers) {
  auto session = BindableSession(kSumAndNegation);
  IoBinding binding(*session);
  std::vector<float> room(4, -1);
  ASSERT_TRUE(binding.BindInput("x", Ramp(Shape{4})).ok());
  ASSERT_TRUE(binding.BindInput("b", Ramp(Shape{4})).ok());
  ASSERT_TRUE(binding.BindOutput("s", FloatsIn(room)).ok());
  ASSERT_TRUE(session->Run(binding).ok());
  const std::vector<float> right = room;
  ASSERT_TRUE(binding.BindInput("x", Ramp(Shape{3})).ok());
  ASSERT_TRUE(binding.BindInput("b", Ramp(Shape{3})).ok());
  const Status refused = session->Run(binding).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(),
              HasSubstr("buffer for output 's' is float32[4], the output is float32[3]"));
  EXPECT_EQ(room, right);
  // The same memory, for a smaller shape.
  ASSERT_TRUE(binding.BindOutput("s", Tensor::Borrow(DType::kFloat32, Shape{3}, room.data())).ok());
  EXPECT_TRUE(SameBits(session->Run(binding).value()[0], Ramp(Shape{3}, 0.5f)));
  EXPECT_EQ(room[3], right[3]);
}

TEST(IoBinding, PrefillThenDecodeWithOutputsAsTheNextInputs) {
  auto session = BindableSession(kDecoder);
  IoBinding binding(*session);
  ASSERT_TRUE(binding.BindOutput("present").ok());
  ASSERT_TRUE(binding.BindOutput("y").ok());
  RuntimeValue past = Floats(Shape{0}, {});
  std::vector<float> fed;
  for (int64_t n : {3, 1, 1, 4, 1}) {
    ASSERT_TRUE(binding.BindInput("past", past).ok());
    ASSERT_TRUE(binding.BindInput("x", Ramp(Shape{n})).ok());
    const std::vector<float> before = ToFloats(past);
    const Values results = session->Run(binding).value();
    EXPECT_EQ(ToFloats(past), before);
    for (float f : ToFloats(Ramp(Shape{n}))) fed.push_back(f);
    EXPECT_EQ(ToFloats(results[0]), fed);
    EXPECT_EQ(ToFloats(results[1])[0], -fed[0]);
    EXPECT_NE(results[0].tensor().raw(), past.tensor().raw());
    past = results[0];
  }
}

TEST(IoBinding, OutputsOfUnknownShape) {
  auto session = BindableSession("(float[N] x) => (int64[1,K] at) { at = NonZero (x) }");
  IoBinding binding(*session);
  ASSERT_TRUE(binding.BindOutput("at").ok());
  ASSERT_TRUE(binding.BindInput("x", Floats(Shape{3}, {1, 0, 2})).ok());
  const Values first = session->Run(binding).value();
  ASSERT_TRUE(binding.BindInput("x", Floats(Shape{3}, {3, 4, 5})).ok());
  EXPECT_THAT(session->Run(binding).value()[0].tensor().ToVector<int64_t>(), ElementsAre(0, 1, 2));
  EXPECT_THAT(first[0].tensor().ToVector<int64_t>(), ElementsAre(0, 2));
  // A buffer of just the right size is written directly; another one is refused.
  std::vector<int64_t> room(3, -1);
  ASSERT_TRUE(
      binding.BindOutput("at", Tensor::Borrow(DType::kInt64, Shape{1, 3}, room.data())).ok());
  EXPECT_EQ(session->Run(binding).value()[0].tensor().raw(), room.data());
  EXPECT_THAT(room, ElementsAre(0, 1, 2));
  ASSERT_TRUE(binding.BindInput("x", Floats(Shape{3}, {0, 0, 5})).ok());
  EXPECT_THAT(session->Run(binding).status().message(),
              HasSubstr("buffer for output 'at' is int64[1, 3], the output is int64[1, 1]"));
}

TEST(IoBinding, OutputsAreSizedBeforeTheRunWhereInputsTell) {
  auto session = BindableSession(
      "(float[N] x) => (float[N] y, int64[1,K] at, float[N] x) { y = Neg (x) at = NonZero (x) }");
  IoBinding binding(*session);
  ASSERT_TRUE(binding.BindInput("x", Ramp(Shape{7})).ok());
  const auto specs = session->OutputSpecs(binding).value();
  ASSERT_EQ(specs.size(), 3u);
  EXPECT_TRUE(specs[0].known);
  EXPECT_EQ(specs[0].dtype, DType::kFloat32);
  EXPECT_EQ(specs[0].shape, (Shape{7}));
  EXPECT_EQ(specs[1].name, "at");
  EXPECT_FALSE(specs[1].known);
  EXPECT_EQ(session->OutputSpecs({{"x", Ramp(Shape{2})}}).value()[2].shape, (Shape{2}));
  EXPECT_THAT(session->OutputSpecs(IoBinding(*session)).status().message(),
              HasSubstr("no value given for input(s) 'x'"));
}

TEST(IoBinding, WhatIsWrongIsNamedAndLeavesTheBindingAsItWas) {
  auto session =
      BindableSession("(float[N,2] x, float[2] b) => (float[N,2] y) { y = Neg (x) z = Neg (b) }");
  IoBinding binding(*session);
  EXPECT_THAT(binding.BindInput("w", Ramp(Shape{2})).message(),
              HasSubstr("the model has no input 'w' to bind"));
  EXPECT_THAT(binding.BindInput("b", Ramp(Shape{3})).message(),
              HasSubstr("input 'b' is float32[2], got float32[3]"));
  EXPECT_THAT(binding.BindOutput("b").message(), HasSubstr("the model has no output 'b' to bind"));
  EXPECT_THAT(binding.BindOutput("y", Tensor::Zeros(DType::kFloat64, Shape{1, 2})).message(),
              HasSubstr("output 'y' is float32[N, 2], the buffer bound to it is float64[1, 2]"));
  EXPECT_THAT(binding.BindOutput("y", Tensor::Zeros(DType::kFloat32, Shape{1, 3})).message(),
              HasSubstr("float32[1, 3]"));
  EXPECT_THAT(binding.BindOutput("y", Tensor()).message(), HasSubstr("undefined"));
  EXPECT_THAT(session->Run(binding).status().message(), HasSubstr("no output is bound"));
  ASSERT_TRUE(binding.BindOutput("y").ok());
  EXPECT_THAT(session->Run(binding).status().message(),
              HasSubstr("no value given for input(s) 'x', 'b'"));
  ASSERT_TRUE(binding.BindInput("x", Ramp(Shape{1, 2})).ok());
  ASSERT_TRUE(binding.BindInput("b", Ramp(Shape{2})).ok());
  EXPECT_FALSE(binding.BindInput("x", Ramp(Shape{2})).ok());
  EXPECT_TRUE(session->Run(binding).ok());
  auto other =
      BindableSession("(float[N,2] x, float[2] b) => (float[N,2] y) { y = Neg (x) z = Neg (b) }");
  EXPECT_THAT(other->Run(binding).status().message(), HasSubstr("another session"));
  EXPECT_THAT(
      session->Run(binding, {.fetch_buffers = {Tensor::Zeros(DType::kFloat32, Shape{1, 2})}})
          .status()
          .message(),
      HasSubstr("are bound, not given as options"));
}

TEST(IoBinding, OverlappingMemoryIsRefused) {
  auto session = BindableSession(kSumAndNegation);
  IoBinding binding(*session);
  std::vector<float> room(8);
  const auto part = [&](int first, int count) {
    return Tensor::Borrow(DType::kFloat32, Shape{count}, room.data() + first);
  };
  ASSERT_TRUE(binding.BindInput("x", part(0, 2)).ok());
  EXPECT_THAT(binding.BindOutput("s", part(1, 2)).message(),
              HasSubstr("output 's' overlaps input 'x'"));
  EXPECT_THAT(binding.BindOutput("s", part(1, 2), Overlap::kExact).message(),
              HasSubstr("but is not the same bytes"));
  EXPECT_FALSE(binding.BindOutput("s", part(0, 2)).ok());
  ASSERT_TRUE(binding.BindOutput("s", part(2, 2)).ok());
  EXPECT_THAT(binding.BindOutput("n", part(3, 2), Overlap::kExact).message(),
              HasSubstr("'s' and 'n' overlap"));
  EXPECT_THAT(binding.BindInput("b", part(2, 2)).message(),
              HasSubstr("output 's' overlaps input 'b'"));
  EXPECT_TRUE(binding.BindInput("b", part(4, 2)).ok());
  EXPECT_TRUE(binding.BindInput("b", part(0, 2)).ok());  // inputs may share
}

TEST(IoBinding, AnOutputDeclaredToReplaceAnInputDoesSoWhenTheRunHasSucceeded) {
  auto provider = std::make_shared<FailingProvider>(std::make_shared<TinyProvider>());
  auto session = BindableSession(
      "(float[2] x) => (float[2] y, float[2] z, float[2] x) { y = Neg (x) z = Mul (x, y) }",
      {provider});
  IoBinding binding(*session);
  std::vector<float> x = {1, 2};
  ASSERT_TRUE(binding.BindInput("x", FloatsIn(x)).ok());
  ASSERT_TRUE(binding.BindOutput("y", FloatsIn(x), Overlap::kExact).ok());
  ASSERT_TRUE(binding.BindOutput("z").ok());
  ASSERT_TRUE(binding.BindOutput("x").ok());
  session->fallback().set_enabled(false);
  provider->FailAt(1);
  EXPECT_EQ(session->Run(binding).status().code(), StatusCode::kProviderFailure);
  EXPECT_THAT(x, ElementsAre(1, 2));
  provider->FailAt(-1);
  const Values results = session->Run(binding).value();
  EXPECT_THAT(x, ElementsAre(-1, -2));
  EXPECT_EQ(results[0].tensor().raw(), x.data());
  EXPECT_THAT(ToFloats(results[1]), ElementsAre(-1, -4));  // from the old x
  EXPECT_THAT(ToFloats(results[2]), ElementsAre(1, 2));
}

TEST(IoBinding, ABoundRunFallsBackFromAProviderThatFails) {
  for (int kernel : {0, 1}) {
    auto provider = std::make_shared<FailingProvider>(std::make_shared<TinyProvider>());
    auto session = BindableSession(kSumAndNegation, {provider});
    IoBinding binding(*session);
    std::vector<float> x = {1, 2}, b = {10, 20};
    ASSERT_TRUE(binding.BindInput("x", FloatsIn(x)).ok() &&
                binding.BindInput("b", FloatsIn(b)).ok());
    ASSERT_TRUE(binding.BindOutput("n", FloatsIn(x), Overlap::kExact).ok());
    ASSERT_TRUE(binding.BindOutput("s").ok());
    provider->FailAt(kernel);
    const Values results = session->Run(binding).value();
    EXPECT_TRUE(session->fallback().record().has_value());
    EXPECT_THAT(x, ElementsAre(-11, -22));  // once, from what was bound
    EXPECT_THAT(ToFloats(results[1]), ElementsAre(11, 22));
    EXPECT_THAT(ToFloats(session->Run(binding).value()[1]),
                ElementsAre(-1, -2));  // on what it has gone over to
  }
}

TEST(IoBinding, ARunEndsSoonAfterItsCallerSaysSo) {
  auto session = BindableSession(kSumAndNegation);
  auto cancel = std::make_shared<std::atomic<bool>>(true);
  const NamedValues feeds = {{"x", Ramp(Shape{2})}, {"b", Ramp(Shape{2})}};
  EXPECT_EQ(session->Run(feeds, {}, {.cancel = cancel}).status().code(), StatusCode::kCancelled);
  *cancel = false;
  EXPECT_TRUE(session->Run(feeds, {}, {.cancel = cancel}).ok());
}

// One binding with fresh outputs, read by all; beside it one of its own in each thread, into the
// thread's buffer.
TEST(IoBindingThreads, ShareASessionAndABinding) {
  constexpr int kThreads = 8;
  const int rounds = std::getenv("CAESURA_LONG") != nullptr ? 1000 : 60;
  auto session = BindableSession(kSumAndNegation);
  IoBinding shared(*session);
  ASSERT_TRUE(shared.BindInput("x", Floats(Shape{3}, {1, 2, 3})).ok());
  ASSERT_TRUE(shared.BindInput("b", Floats(Shape{3}, {10, 20, 30})).ok());
  ASSERT_TRUE(shared.BindOutput("n").ok());
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      IoBinding own = shared;
      for (int round = 0; round < rounds; ++round) {
        const int64_t n = 1 + (t + round) % 6;
        std::vector<float> sum(n), x(n, static_cast<float>(t)), b(n, static_cast<float>(round));
        own.ClearOutputs();
        const bool bound = own.BindInput("x", FloatsIn(x)).ok() &&
                           own.BindInput("b", FloatsIn(b)).ok() &&
                           own.BindOutput("s", FloatsIn(sum)).ok();
        auto results = session->Run(own);
        auto others = session->Run(shared);
        right += bound && results.ok() &&
                 sum == std::vector<float>(n, static_cast<float>(t + round)) && others.ok() &&
                 ToFloats((*others)[0]) == std::vector<float>{-11, -22, -33};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, kThreads * rounds);
}

}  // namespace
}  // namespace caesura::testing
