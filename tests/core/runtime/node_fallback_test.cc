// SPDX-License-Identifier: Apache-2.0
// The ONNX node tests on a provider that says yes to everything and then fails: the CPU's results,
// bit for bit. A tenth of them; all of them with CAESURA_LONG=1.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "core/load/file_system.h"
#include "core/load/model_reader.h"
#include "core/load/value_reader.h"
#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "graph_transforms/pipeline.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

// Strings by what they say; all else bit for bit.
bool Same(const RuntimeValue& a, const RuntimeValue& b) {
  const bool strings = a.is_tensor() && b.is_tensor() && a.tensor().dtype() == DType::kString;
  if (!strings || b.tensor().dtype() != DType::kString) return SameBits(a, b);
  const std::string *of_a = a.tensor().data<std::string>(), *of_b = b.tensor().data<std::string>();
  return a.tensor().shape() == b.tensor().shape() &&
         std::equal(of_a, of_a + a.tensor().elements(), of_b);
}

struct Outcome {
  Result<Values> results;
  bool fell_back;
};

Outcome RunNodeTest(const std::string& folder, const ProviderList& providers) {
  SessionOptions options;
  options.providers = providers;
  options.passes = InferencePasses;
  options.plan.threads = 1;
  auto model = ReadModel(folder + "/model.onnx");
  if (!model.ok()) return {model.status(), false};
  auto session = Session::Create(*std::move(model), std::move(options));
  if (!session.ok()) return {session.status(), false};
  NamedValues feeds;
  for (size_t i = 0; i < (*session)->inputs().size(); ++i) {
    const std::string path = folder + "/test_data_set_0/input_" + std::to_string(i) + ".pb";
    if (!PosixFileSystem().Exists(path).value()) continue;
    const Value* input = (*session)->inputs()[i];
    const std::string bytes = ReadWholeFile(PosixFileSystem(), path, size_t{1} << 31).value();
    auto value = ReadValueBytes(bytes, input->type());
    if (!value.ok()) return {value.status(), false};
    feeds[input->name()] = *std::move(value);
  }
  Outcome outcome{(*session)->Run(feeds), false};
  outcome.fell_back = (*session)->fallback_record().has_value();
  return outcome;
}

TEST(NodeFallback, NodeTestsEndWithTheCpusResults) {
  const std::string folder = CAESURA_NODE_TESTS_FOLDER;
  const auto there = PosixFileSystem().List(folder);
  if (!there.ok()) GTEST_SKIP() << "no node tests in " << folder;
  const ProviderList cpu = {MakeCpuProvider()};
  auto faulty = std::make_shared<FailingProvider>(cpu[0], "faulty", /*scribbles=*/true);
  const size_t every = std::getenv("CAESURA_LONG") != nullptr ? 1 : 10;
  int run = 0, fell_back = 0;
  ::testing::internal::CaptureStderr();  // a warning a case
  for (size_t i = 0; i < there->size(); i += every) {
    SCOPED_TRACE((*there)[i]);
    const std::string path = folder + "/" + (*there)[i];
    const Outcome expected = RunNodeTest(path, cpu);
    faulty->FailAt(i % 3 == 0 ? 1 : 0, /*and_later=*/true);
    const Outcome got = RunNodeTest(path, {faulty, cpu[0]});
    ASSERT_EQ(got.results.status().code(), expected.results.status().code())
        << got.results.status().ToString();
    if (!expected.results.ok()) continue;
    ASSERT_EQ(got.results->size(), expected.results->size());
    for (size_t r = 0; r < got.results->size(); ++r)
      EXPECT_TRUE(Same((*got.results)[r], (*expected.results)[r])) << r;
    ++run;
    fell_back += got.fell_back;
  }
  ::testing::internal::GetCapturedStderr();
  std::printf("%d node tests, %d of them fell back\n", run, fell_back);
  EXPECT_GT(fell_back, run / 2);
}

}  // namespace
}  // namespace caesura::testing
