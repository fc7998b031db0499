// SPDX-License-Identifier: Apache-2.0
// For passes that leave fewer nodes and the same bits.
#ifndef CAESURA_TESTS_GRAPH_TRANSFORMS_OPS_LEFT_H_
#define CAESURA_TESTS_GRAPH_TRANSFORMS_OPS_LEFT_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/providers/cpu_provider.h"
#include "graph_transforms/shapes/shape_inference_pass.h"
#include "graph_transforms/simplify/dead_node_elimination.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {

inline Values RunWithTrainingKernels(const std::shared_ptr<Graph>& graph, const Values& feeds) {
  return RunPlan(PlanOf(graph, feeds, {}, {MakeCpuProvider()}), feeds);
}

// Returns the ops that the pass leaves, in order. Results are compared with those of the graph as
// it was.
inline std::vector<std::string> OpsLeft(const std::shared_ptr<Pass>& pass, const std::string& body,
                                        const Values& feeds) {
  Model model;
  model.graph = GraphOf(body);
  const Values expected = RunWithTrainingKernels(GraphOf(body), feeds);
  const auto records =
      RunPasses({MakeShapeInferencePass(), pass, MakeDeadNodeEliminationPass()}, model);
  EXPECT_TRUE(records.ok()) << records.status().ToString();
  EXPECT_TRUE(SameBits(RunWithTrainingKernels(model.graph, feeds), expected));
  std::vector<std::string> ops;
  for (const auto& node : model.graph->nodes()) ops.push_back(node->op_type());
  return ops;
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_GRAPH_TRANSFORMS_OPS_LEFT_H_
