// SPDX-License-Identifier: Apache-2.0
// Ops that treat each row of their tensors by itself: row_fusion may group them.
#ifndef CAESURA_GRAPH_TRANSFORMS_FUSION_ROW_OP_H_
#define CAESURA_GRAPH_TRANSFORMS_FUSION_ROW_OP_H_

#include <optional>
#include <vector>

#include "core/graph/graph.h"

namespace caesura {

struct RowOp {
  std::vector<Dim> rows;     // the leading dims: all but the last one
  std::vector<int> columns;  // outputs that are sums over all rows
};

// Nothing where the op looks beyond a row, or where types do not say enough. `for_device`: ops of
// OpDef::device_rows are such ops too.
std::optional<RowOp> AsRowOp(const Node& node, bool for_device);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_FUSION_ROW_OP_H_
