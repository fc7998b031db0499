// SPDX-License-Identifier: Apache-2.0
// From a graph's text to a plan and its results, in a line each.
#ifndef CAESURA_TESTS_CORE_EXECUTE_GRAPH_FIXTURE_H_
#define CAESURA_TESTS_CORE_EXECUTE_GRAPH_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/execute/partial_executor.h"
#include "core/onnx/model_reader.h"
#include "core/runtime/subgraph.h"
#include "tests/core/execute/tiny_provider.h"

namespace caesura::testing {

using Values = std::vector<RuntimeValue>;

// `body`: "(inputs) => (outputs) <initializers> { nodes }".
inline std::shared_ptr<Graph> GraphOf(const std::string& body) {
  auto model = ParseModelText(
      "<ir_version: 10, opset_import: [\"\" : 23, \"ai.caesura\" : 1, \"test\" : 1]> g " + body);
  EXPECT_TRUE(model.ok()) << model.status().ToString() << "\n" << body;
  return model.ok() ? model->graph : nullptr;
}

inline std::vector<FeedSpec> SpecsOf(const Values& feeds) {
  std::vector<FeedSpec> specs;
  for (const RuntimeValue& feed : feeds) specs.push_back(FeedSpec::Of(feed));
  return specs;
}

inline Result<std::shared_ptr<const ExecutionPlan>> TryPlan(const std::shared_ptr<Graph>& graph,
                                                            const Values& feeds,
                                                            PlanOptions options = {},
                                                            ProviderList providers = Tiny()) {
  if (options.threads == 0) options.threads = 1;
  return ExecutionPlan::Create(graph, SpecsOf(feeds), providers, WithSubgraphs(options, providers));
}

inline std::shared_ptr<const ExecutionPlan> PlanOf(const std::shared_ptr<Graph>& graph,
                                                   const Values& feeds, PlanOptions options = {},
                                                   ProviderList providers = Tiny()) {
  auto plan = TryPlan(graph, feeds, std::move(options), std::move(providers));
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? *plan : nullptr;
}

// One run without a yield.
inline Result<Values> Finish(ExecutionState& state, Values feeds, RunOptions options = {}) {
  Status started = state.Start(std::move(feeds), std::move(options));
  if (!started.ok()) return started;
  auto outcome = PartialExecutor::Run(state);
  if (!outcome.ok()) return outcome.status();
  EXPECT_EQ(*outcome, RunOutcome::kFinished);
  return state.TakeFetches();
}

inline Values RunPlan(const std::shared_ptr<const ExecutionPlan>& plan, Values feeds,
                      RunOptions options = {}) {
  ExecutionState state(plan);
  auto results = Finish(state, std::move(feeds), std::move(options));
  EXPECT_TRUE(results.ok()) << results.status().ToString();
  return results.ok() ? *results : Values();
}

inline RuntimeValue Floats(Shape shape, const std::vector<float>& values) {
  return Tensor::Of<float>(std::move(shape), values);
}
// 0.25, 0.5, 0.75, ... with alternating signs: exact in float32.
inline RuntimeValue Ramp(Shape shape, float scale = 0.25f) {
  std::vector<float> values(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = scale * static_cast<float>(i % 13 + 1) * (i % 2 ? -1 : 1);
  return Floats(std::move(shape), values);
}
inline std::vector<float> ToFloats(const RuntimeValue& value) {
  return value.tensor().ToVector<float>();
}

// Dtype, shape and every bit.
inline bool SameBits(const RuntimeValue& a, const RuntimeValue& b) {
  if (a.is_tensor() != b.is_tensor()) return false;
  if (!a.is_tensor()) return a.is_sequence() == b.is_sequence();
  return a.tensor().dtype() == b.tensor().dtype() && a.tensor().shape() == b.tensor().shape() &&
         (a.tensor().bytes() == 0 ||
          std::memcmp(a.tensor().raw(), b.tensor().raw(), a.tensor().bytes()) == 0);
}
inline bool SameBits(const Values& a, const Values& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!SameBits(a[i], b[i])) return false;
  }
  return true;
}

// Runs to the next yield or the end, so many steps a call; between calls dead bytes are poisoned
// and live ones moved.
inline Result<RunOutcome> RunInPieces(ExecutionState& state, int steps) {
  for (;;) {
    auto outcome = PartialExecutor::Run(state, state.program_counter() + steps);
    if (!outcome.ok() || *outcome != RunOutcome::kStopped) return outcome;
    Status moved = state.Relocate(0xff);
    if (!moved.ok()) return moved;
  }
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_EXECUTE_GRAPH_FIXTURE_H_
