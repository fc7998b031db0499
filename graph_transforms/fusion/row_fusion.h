// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_GRAPH_TRANSFORMS_FUSION_ROW_FUSION_H_
#define CAESURA_GRAPH_TRANSFORMS_FUSION_ROW_FUSION_H_

#include <memory>

#include "core/graph/pass.h"

namespace caesura {

// Groups neighbours that treat the rows of their tensors alone (elementwise ops with broadcasting,
// softmax, norms and reductions over the last axis, and sums over all rows at their ends, such as
// the gradient of a bias) into FusedRows nodes (core/ops/fused_rows/fused_rows.cc), which
// run them tile by tile in cache. Any shape of group will do, with several inputs and outputs;
// forward and backward nodes stay apart, as do nodes that depend on initializers alone, which
// planning folds or caches, from all others. Where types do not prove that rows agree, nothing
// changes. `for_device`: the providers have a device, and groups take in ops of
// OpDef::device_rows.
std::shared_ptr<Pass> MakeRowFusionPass(bool for_device = false);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_FUSION_ROW_FUSION_H_
