// SPDX-License-Identifier: Apache-2.0
// The rows of groups of row ops (core/graph/op_def.h).
#include <vector>

#include "core/graph/op_def.h"

namespace caesura {
// clang-format off
std::vector<OpDef> FusedRowsOps() {
  return {
    // FusedRows (inputs...) -> outputs  what its `body` computes, row by row
    // (core/ops/fused_rows/fused_rows.h). Made by row_fusion, after differentiation
    {.op_type = "FusedRows", .domain = kCaesuraDomain, .max_inputs = 256, .max_outputs = 256,
     .body_refusal = "it stands for nodes that were fused: write the graph before that"},
  };
}
// clang-format on

}  // namespace caesura
