// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/kernel_creation.h"

#include <gmock/gmock.h>

#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

// Sizes and axes of types that a factory does not read, in ops of several families. A model cannot
// declare them, but an initializer may have another type than its input.
TEST(KernelCreation, HostInputsAreNumbers) {
  struct {
    const char* text;
    int input;
    Values feeds;
  } const cases[] = {
      {"(int64[1] size) => (y) { y = BlackmanWindow (size) }",
       0,
       {Tensor::Zeros(DType::kFloat8E5M2, Shape{1})}},
      {"(float[2] x, int64[1] axes) => (y) { y = Unsqueeze (x, axes) }",
       1,
       {Ramp({2}), Tensor::Zeros(DType::kFloat8E4M3FN, Shape{1})}},
      {"(float[2] x, int64[1] shape) => (y) { y = Reshape (x, shape) }",
       1,
       {Ramp({2}), Tensor::Zeros(DType::kFloat8E5M2, Shape{1})}},
      {"(float[4] x, int64[1] k) => (y, i) { y, i = TopK (x, k) }",
       1,
       {Ramp({4}), Tensor::Zeros(DType::kFloat8E5M2, Shape{1})}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    const auto graph = GraphOf(c.text);
    ASSERT_NE(graph, nullptr);
    auto plan = TryPlan(graph, c.feeds, {}, {MakeCpuProvider()});
    Status status = plan.status();
    if (plan.ok()) {
      ExecutionState state(*plan);
      status = Finish(state, c.feeds).status();
    }
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.message(), ::testing::HasSubstr("input " + std::to_string(c.input) +
                                                       ": expected numbers, got float8"));
  }
}

// onnx does not check the types that these ops take.
TEST(KernelCreation, OpsOfThisLibraryTakeTensors) {
  const auto graph = GraphOf(
      "(float[2, 2] x) => (y) { q = SequenceConstruct (x) y = ai.caesura.FusedMatMul (x, q) }");
  ASSERT_NE(graph, nullptr);
  const Values feeds = {Ramp({2, 2})};
  auto plan = TryPlan(graph, feeds, {}, {MakeCpuProvider()});
  Status status = plan.status();
  if (plan.ok()) {
    ExecutionState state(*plan);
    status = Finish(state, feeds).status();
  }
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), ::testing::HasSubstr("input 1: expected a tensor"));
}

}  // namespace
}  // namespace caesura::testing
