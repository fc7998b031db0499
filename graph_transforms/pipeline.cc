// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/order/collective_order.h"
#include "graph_transforms/order/update_order.h"
#include "graph_transforms/order/update_placement.h"
#include "graph_transforms/precision/cast_grouping.h"
#include "graph_transforms/precision/loss_cast.h"
#include "graph_transforms/recompute.h"
#include "core/plan/placement.h"
#include "graph_transforms/pipeline.h"

#include <algorithm>
#include <set>

#include "core/plan/subgraph_partition.h"
#include "core/providers/cpu_provider.h"
#include "graph_transforms/fusion/attention_fusion.h"
#include "graph_transforms/fusion/dequantize_fusion.h"
#include "graph_transforms/fusion/gemm_fusion.h"
#include "graph_transforms/fusion/matmul_epilogue.h"
#include "graph_transforms/fusion/norm_fusion.h"
#include "graph_transforms/fusion/row_fusion.h"
#include "graph_transforms/fusion/weight_packing.h"
#include "graph_transforms/precision/cast_propagation.h"
#include "graph_transforms/precision/mixed_precision.h"
#include "graph_transforms/shapes/cpu_fallback.h"
#include "graph_transforms/shapes/shape_inference_pass.h"
#include "graph_transforms/shapes/shape_simplification.h"
#include "graph_transforms/simplify/common_subexpression.h"
#include "graph_transforms/simplify/constant_nodes.h"
#include "graph_transforms/simplify/dead_node_elimination.h"
#include "graph_transforms/simplify/expand_sinking.h"
#include "graph_transforms/simplify/function_inlining.h"
#include "graph_transforms/simplify/movement_elimination.h"
#include "graph_transforms/simplify/redundant_nodes.h"
#include "graph_transforms/simplify/split_sequences.h"
#include "graph_transforms/simplify/split_slices.h"

namespace caesura {
namespace {

bool AllOnHost(const ProviderList& providers) {
  return std::all_of(providers.begin(), providers.end(),
                     [](const auto& provider) { return provider->device().is_host(); });
}

}  // namespace

PassList ForwardPasses(std::unordered_set<std::string> parameters) {
  PassList passes;
  // Constant nodes become initializers, so that the other passes have one place to look for
  // constants.
  passes.push_back(MakeConstantNodesPass());
  // Identity and the like go, so that patterns see through them.
  passes.push_back(MakeRedundantNodesPass());
  // Exporters write tensor.split as a sequence whose elements are taken out again: Split says the
  // same.
  passes.push_back(MakeSplitSequencesPass());
  // Equal nodes are computed once. After the simplifications, which make nodes equal.
  passes.push_back(MakeCommonSubexpressionPass(parameters));
  // Slices that are the parts of one tensor are a Split. After the pass that joins equal slices.
  passes.push_back(MakeSplitSlicesPass());
  // Weights that are stored in few bits stay so.
  passes.push_back(MakeDequantizeFusionPass(parameters));
  // Attention that an exporter wrote out is one op again. After the passes that
  // make its parts easy to see.
  passes.push_back(MakeAttentionFusionPass(parameters));
  // So are root-mean-square norms.
  passes.push_back(MakeNormFusionPass(std::move(parameters)));
  // Transposes, reshapes and casts in a row become one, or none. After the passes that look for
  // them as exporters write them.
  passes.push_back(MakeMovementEliminationPass());
  // Last: what the others left unread.
  passes.push_back(MakeDeadNodeEliminationPass());
  return passes;
}

PassList PrecisionPasses(DType precision) {
  if (precision == DType::kFloat32) return {};
  // Then what casts nobody reads.
  return {MakeMixedPrecisionPass(precision), MakeDeadNodeEliminationPass()};
}

PassList FusionPasses(const ProviderList& providers, std::unordered_set<std::string> changing) {
  PassList passes;
  // Infers shapes of new nodes; the passes below need them.
  passes.push_back(MakeShapeInferencePass());
  // In front of what fuses for our own kernels: providers from outside know ONNX's ops.
  if (AnyCompiles(providers))
    passes.push_back(MakeSubgraphPartitionPass(providers, std::move(changing)));
  // Sums of halves for float32 readers are float32 at once.
  passes.push_back(MakeCastPropagationPass());
  // Terms are added to a product while its tiles are in cache. After passes that leave
  // fewer readers.
  passes.push_back(MakeMatMulEpiloguePass());
  // The remaining arithmetic on rows goes through cache together.
  passes.push_back(MakeRowFusionPass(!AllOnHost(providers)));
  return passes;
}

PassList InferencePasses(const ProviderList& providers) {
  PassList passes = ForwardPasses();
  // Dims that types tell; feeds of sessions are checked against these. (Those of training may have
  // another batch.)
  passes.push_back(MakeShapeSimplificationPass());
  passes.push_back(MakeDeadNodeEliminationPass());
  for (auto& pass : FusionPasses(providers)) passes.push_back(std::move(pass));
  for (auto& pass : PlacementPasses(providers)) passes.push_back(std::move(pass));
  // Weights lie as our own kernel of products reads them. After all passes that look into them.
  const bool only_ours = std::all_of(providers.begin(), providers.end(), [](const auto& provider) {
    return provider->name() == kCpuProviderName;
  });
  if (only_ours) passes.push_back(MakeWeightPackingPass());
  return passes;
}

PassList SimplifyPasses(std::unordered_set<std::string> changing) {
  PassList passes;
  // Nodes that rules made get their shapes: many sums over what might have been broadcast turn out
  // to be none.
  passes.push_back(MakeShapeInferencePass());
  passes.push_back(MakeRedundantNodesPass());
  // Rules ask for the same shapes, masks and transposed values again and again.
  passes.push_back(MakeCommonSubexpressionPass(std::move(changing)));
  // For graphs that were captured with their backward: all others have none left.
  passes.push_back(MakeSplitSlicesPass());
  // Gradients of means and sums broadcast where they are used.
  passes.push_back(MakeExpandSinkingPass());
  passes.push_back(MakeDeadNodeEliminationPass());
  return passes;
}

PassList PlainPasses() {
  PassList passes = SimplifyPasses();
  // Products, with the transposes, factors and sums around them, are Gemm, which other runtimes run
  // as one.
  passes.push_back(MakeGemmFusionPass());
  passes.push_back(MakeDeadNodeEliminationPass());
  return passes;
}

PassList StepPasses(const ProviderList& providers, std::unordered_set<std::string> changing) {
  PassList passes = SimplifyPasses(changing);
  for (auto& pass : FusionPasses(providers, std::move(changing))) passes.push_back(std::move(pass));
  return passes;
}

PassList SessionStepPasses(const ProviderList& providers, const SessionStep& step) {
  const std::unordered_set<std::string> changing(step.parameters.begin(), step.parameters.end());
  PassList passes = StepPasses(providers, changing);
  if (DevicesOf(providers).size() > 1) {
    // Gradients of halves leave the loss as halves.
    passes.push_back(MakeLossCastPass());
    // One launch casts many parameters. Recomputation needs each cast where it is read.
    if (!step.may_recompute) passes.push_back(MakeCastGroupingPass(changing));
  }
  // After all passes that move nodes, but for the one that leaves collectives in place.
  if (step.exchanges) passes.push_back(MakeCollectiveOrderPass(step.early));
  if (step.early) passes.push_back(MakeUpdateOrderPass(step.parameters));
  // Updates run where their parameters are.
  passes.push_back(MakeUpdatePlacementPass(step.parameters, providers));
  return passes;
}

PassList CapturedPasses(const ProviderList& providers) {
  PassList passes = StepPasses(providers);
  // Last: it sees no readers through views.
  passes.push_back(MakeYieldOrderPass());
  return passes;
}

PassList PlacementPasses(const ProviderList& providers) { return PlacementPasses(providers, {}); }

PassList PlacementPasses(const ProviderList& providers, CpuFallbackOptions fallback) {
  PassList passes;
  if (AllOnHost(providers)) return passes;
  // Ops that no provider has become their bodies, whose nodes may be links of shape chains.
  passes.push_back(MakeFunctionInliningPass(providers));
  // Which values look like shapes is a matter of their types.
  passes.push_back(MakeShapeInferencePass());
  // Last: placement of the nodes as they will be planned.
  passes.push_back(MakeCpuFallbackPass(providers, std::move(fallback)));
  return passes;
}

const std::vector<std::string>& PassNames() {
  static const auto* names = [] {
    std::set<std::string> all = {MakeRecomputePass({}, {})->name(),
                                 MakeSubgraphPartitionPass({})->name(),
                                 MakeLossCastPass()->name(),
                                 MakeCastGroupingPass({})->name(),
                                 MakeFunctionInliningPass({})->name(),
                                 MakeCpuFallbackPass({})->name()};  // where there are devices
    for (const PassList& list :
         {ForwardPasses(), PrecisionPasses(DType::kBFloat16), InferencePasses(),
          SessionStepPasses({}, {.parameters = {}, .early = true, .exchanges = true}),
          CapturedPasses({}), PlainPasses()}) {
      for (const auto& pass : list) all.insert(pass->name());
    }
    return new std::vector<std::string>(all.begin(), all.end());
  }();
  return *names;
}

}  // namespace caesura
