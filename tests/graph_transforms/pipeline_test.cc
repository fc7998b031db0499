// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "core/graph/pass.h"
#include "core/onnx/model_reader.h"

namespace caesura {
namespace {

// Options may switch off what another session's list has: names are checked against those of all
// passes.
TEST(PipelineTest, PassNamesAreThoseOfAllLists) {
  const std::set<std::string> names(PassNames().begin(), PassNames().end());
  for (const char* name :
       {"attention_fusion", "mixed_precision", "row_fusion", "weight_packing", "collective_order",
        "update_order", "update_placement", "yield_order", "recompute", "cpu_fallback"})
    EXPECT_EQ(names.count(name), 1u) << name;
  EXPECT_EQ(names.size(), PassNames().size());
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
