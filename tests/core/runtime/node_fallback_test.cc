// SPDX-License-Identifier: Apache-2.0
// The ONNX node tests on a provider that says yes to everything and then fails: the CPU's results,
// bit for bit. A tenth of them; all of them with CAESURA_LONG=1.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "core/files/file_system.h"
#include "core/providers/cpu_provider.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/core/runtime/node_test.h"
#include "tests/test_paths.h"

namespace caesura::testing {
namespace {

TEST(NodeFallback, NodeTestsEndWithTheCpusResults) {
  const std::string folder = kNodeTestsFolder;
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
    const NodeTestRun expected = RunNodeTest(path, cpu);
    faulty->FailAt(i % 3 == 0 ? 1 : 0, /*and_later=*/true);
    const NodeTestRun got = RunNodeTest(path, {faulty, cpu[0]});
    ASSERT_EQ(got.results.status().code(), expected.results.status().code())
        << got.results.status().ToString();
    if (!expected.results.ok()) continue;
    ASSERT_EQ(got.results->size(), expected.results->size());
    for (size_t r = 0; r < got.results->size(); ++r)
      EXPECT_TRUE(SameResult((*got.results)[r], (*expected.results)[r])) << r;
    ++run;
    fell_back += got.fell_back;
  }
  ::testing::internal::GetCapturedStderr();
  std::printf("%d node tests, %d of them fell back\n", run, fell_back);
  EXPECT_GT(fell_back, run / 2);
}

}  // namespace
}  // namespace caesura::testing
