// SPDX-License-Identifier: Apache-2.0
// cuDNN itself has a plan for each graph of the tests on an H100 (cudnn_plans.cc).
#include "core/ops/attention/cuda_attention_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "tests/core/ops/cuda/attention_case.h"
#include "tests/core/ops/cuda/conv_case.h"
#include "tests/test_paths.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

TEST(CudnnPlans, AreThereForAllGraphsOfTheTests) {
  if (!std::filesystem::exists(kRealCudnn)) GTEST_SKIP() << "no " << kRealCudnn;
  std::FILE* lines = popen(kCudnnPlansCommand, "r");
  ASSERT_NE(lines, nullptr);
  size_t plans = 0;
  for (char line[4096]; std::fgets(line, sizeof line, lines) != nullptr; ++plans)
    EXPECT_THAT(std::string(line), HasSubstr(": workspace "));
  EXPECT_EQ(pclose(lines), 0);
  EXPECT_EQ(plans, 3 * (FusedAttentionCases().size() + ConvCases().size()));
  std::printf("%zu plans by cuDNN\n", plans);
}

TEST(AttentionGraph, IsNotForAllAttention) {
  AttentionSpec s = FusedAttentionCases()[0].Spec();
  EXPECT_EQ(WhyNoAttentionGraph(s, DType::kBFloat16), "");
  EXPECT_THAT(WhyNoAttentionGraph(s, DType::kFloat32), HasSubstr("halves"));
  AttentionSpec masked = s;
  masked.mask = MaskKind::kBool;
  EXPECT_THAT(WhyNoAttentionGraph(masked, DType::kBFloat16), HasSubstr("mask"));
  AttentionSpec narrow = s;
  narrow.q.size = narrow.k.size = 4;
  EXPECT_THAT(WhyNoAttentionGraph(narrow, DType::kBFloat16), HasSubstr("multiple of 8"));
  AttentionSpec shifted = s;
  shifted.k.offset = 4;
  EXPECT_THAT(WhyNoAttentionGraph(shifted, DType::kBFloat16), HasSubstr("aligned"));
  AttentionSpec single = s;
  single.q.positions = single.k.positions = single.total = 1;
  EXPECT_THAT(WhyNoAttentionGraph(single, DType::kBFloat16), HasSubstr("more than one"));
}

}  // namespace
}  // namespace caesura::testing
