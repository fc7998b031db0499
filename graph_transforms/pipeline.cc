// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/pipeline.h"

#include "graph_transforms/common_subexpression.h"
#include "graph_transforms/constant_nodes.h"
#include "graph_transforms/dead_node_elimination.h"
#include "graph_transforms/matmul_epilogue.h"
#include "graph_transforms/redundant_nodes.h"
#include "graph_transforms/row_fusion.h"
#include "graph_transforms/shape_inference_pass.h"
#include "graph_transforms/split_sequences.h"

namespace caesura {

PassList ForwardPasses(std::unordered_set<std::string> parameters) {
  PassList passes;
  // Constant nodes become initializers, so that the other passes have one place to look for constants.
  passes.push_back(MakeConstantNodesPass());
  // Identity and the like go, so that patterns see through them.
  passes.push_back(MakeRedundantNodesPass());
  // Exporters write tensor.split as a sequence whose elements are taken out again: Split says the same.
  passes.push_back(MakeSplitSequencesPass());
  // Equal nodes are computed once. After the simplifications, which make nodes equal.
  passes.push_back(MakeCommonSubexpressionPass(std::move(parameters)));
  // Last: what the others left unread.
  passes.push_back(MakeDeadNodeEliminationPass());
  return passes;
}

PassList StepPasses() {
  PassList passes;
  passes.push_back(MakeRedundantNodesPass());
  // Rules ask for the same shapes, masks and transposed values again and again.
  passes.push_back(MakeCommonSubexpressionPass({}));
  passes.push_back(MakeDeadNodeEliminationPass());
  // Backward nodes get their shapes, which the next two go by.
  passes.push_back(MakeShapeInferencePass());
  // What is added to a product is added while its tiles are in cache. After the above, which leave fewer readers.
  passes.push_back(MakeMatMulEpiloguePass());
  // What is left of arithmetic on rows goes through cache together.
  passes.push_back(MakeRowFusionPass());
  return passes;
}

}  // namespace caesura
