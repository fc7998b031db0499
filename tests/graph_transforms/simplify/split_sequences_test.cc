// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/split_sequences.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

// A node of as many outputs as a dim has elements would be made for dims of any size.
TEST(SplitSequences, LongSequencesStay) {
  for (const auto& [size, op] : {std::pair("100", "Split"), {"1000000000", "SplitToSequence"}}) {
    Model model;
    model.graph =
        GraphOf("(float[" + std::string(size) + R"(] x) => (float[1] y) <int64 one = {1}> {
      s = SplitToSequence <axis = 0> (x) a = SequenceAt (s, one) y = Neg (a) })");
    ASSERT_TRUE(RunPasses({MakeShapeInferencePass(), MakeSplitSequencesPass()}, model).ok());
    EXPECT_EQ(model.graph->nodes()[0]->op_type(), op);
  }
}

}  // namespace
}  // namespace caesura::testing
