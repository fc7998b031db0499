// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "core/onnx/graph_text.h"
#include "core/plan/subgraph_partition.h"
#include "graph_transforms/precision/cast_grouping.h"
#include "graph_transforms/precision/loss_cast.h"
#include "graph_transforms/recompute.h"
#include "graph_transforms/shapes/cpu_fallback.h"
#include "graph_transforms/simplify/function_inlining.h"
#include "training/update_order.h"

namespace caesura {
namespace {

// Options may switch off what another session's list has: names are checked against those of all
// passes.
TEST(PipelineTest, PassNamesAreThoseOfAllPasses) {
  std::set<std::string> names;
  const PassList others = {MakeCastGroupingPass({}),     MakeCpuFallbackPass({}),
                           MakeFunctionInliningPass({}), MakeLossCastPass(),
                           MakeRecomputePass({}, {}),    MakeSubgraphPartitionPass({}),
                           MakeUpdateOrderPass({})};
  for (const PassList& list : {ForwardPasses(), PrecisionPasses(DType::kBFloat16),
                               InferencePasses(), StepPasses(), others}) {
    for (const auto& pass : list) names.insert(pass->name());
  }
  EXPECT_THAT(PassNames(), ::testing::UnorderedElementsAreArray(names));
}

TEST(PipelineTest, UnknownNamesAreErrors) {
  Model model = ParseModelText(
                    "<ir_version: 10, opset_import: [\"\" : 20]> g (float[4] x) => (float[4] y) { "
                    "y = Neg (x) }")
                    .value();
  const auto message = [&](const std::vector<std::string>& disabled) {
    return RunPasses(ForwardPasses(), model, disabled).status().message();
  };
  EXPECT_EQ(message({"cpu_fallback", "split_slices"}), "");
  EXPECT_EQ(message({"split_slice", "none"}),
            "disabled_passes: there is no pass 'split_slice' (nearest: 'split_slices'), 'none'");
  setenv("CAESURA_DISABLE_PASSES", "rows,split_slices", 1);
  EXPECT_EQ(message({}), "CAESURA_DISABLE_PASSES: there is no pass 'rows'");
  unsetenv("CAESURA_DISABLE_PASSES");
}

}  // namespace
}  // namespace caesura
