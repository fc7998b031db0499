// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_GRAPH_TRANSFORMS_FUSION_NORM_FUSION_H_
#define CAESURA_GRAPH_TRANSFORMS_FUSION_NORM_FUSION_H_

#include <memory>
#include <string>
#include <unordered_set>

#include "core/graph/pass.h"

namespace caesura {

// A root-mean-square norm of rows that is written out becomes one node, whose gradient is one node
// too:
//   x * (1 / sqrt(mean(x^2, last axis) + epsilon)) * scale -> RMSNormalization(x, scale)
// in any order of factors, with a reciprocal, a power or a division. Where types do not prove that
// `scale` is a row, or where epsilon is one of `parameters`, nothing changes. For forward graphs,
// before they are differentiated.
std::shared_ptr<Pass> MakeNormFusionPass(std::unordered_set<std::string> parameters);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_FUSION_NORM_FUSION_H_
