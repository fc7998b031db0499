// SPDX-License-Identifier: Apache-2.0
// Sessions on a provider that fails when told to, with a second provider that does not.
#ifndef CAESURA_TESTS_CORE_RUNTIME_FAULTY_SESSION_H_
#define CAESURA_TESTS_CORE_RUNTIME_FAULTY_SESSION_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {

// Weights, a body, random numbers, an input passed through, and what is sized at run time.
inline constexpr char kNet[] =
    R"((float[2,3] x, bool c) => (float[2,2] y, float[2,3] r, float[2,3] same, int64[1,n] at)
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

inline Model ModelOf(const std::string& body) {
  auto model =
      ParseModelText("<ir_version: 10, opset_import: [\"\" : 23, \"test\" : 1]> g " + body);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return *std::move(model);
}

inline NamedValues Feeds() { return {{"x", Ramp(Shape{2, 3})}, {"c", Tensor::Scalar<bool>(true)}}; }

inline std::shared_ptr<FailingProvider> Faulty(const std::string& name = "faulty") {
  return std::make_shared<FailingProvider>(std::make_shared<TinyProvider>(), name,
                                           /*scribbles=*/true);
}

// The provider of a CPU session: MakeCpuProvider's is this one, or has all of it.
inline std::shared_ptr<const ExecutionProvider> Cpu() {
  return std::make_shared<FailingProvider>(std::make_shared<TinyProvider>(), kCpuProviderName);
}

inline std::unique_ptr<Session> SessionOf(Model model, ProviderList providers,
                                          SessionOptions options = {}) {
  options.providers = std::move(providers);
  options.threads = 1;
  options.seed = 5;
  auto session = Session::Create(std::move(model), std::move(options));
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  return session.ok() ? *std::move(session) : nullptr;
}

inline Values Expected(const std::string& body, const NamedValues& feeds, int run = 0) {
  auto session = SessionOf(ModelOf(body), {Cpu()});
  for (int i = 0; i < run; ++i) EXPECT_TRUE(session->Run(feeds).ok());
  return session->Run(feeds).value();
}

inline int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Kernel calls of a session on kNet, up to the end of its first run.
inline int CallsOf(const std::shared_ptr<FailingProvider>& faulty) {
  faulty->FailAt(-1);
  auto session = SessionOf(ModelOf(kNet), {faulty, Cpu()});
  EXPECT_TRUE(session->Run(Feeds()).ok());
  EXPECT_FALSE(session->fallback().record());
  EXPECT_THAT(session->fallback().provider_names(),
              ::testing::ElementsAre("faulty", kCpuProviderName));
  EXPECT_GE(faulty->calls(), 6);
  return faulty->calls();
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_RUNTIME_FAULTY_SESSION_H_
