// SPDX-License-Identifier: Apache-2.0
// redundant_nodes: nodes that hand their input on unchanged are taken out: Identity; Cast and
// CastLike to the type that the value has; Transpose by the identity; SumTo the dims that the value
// has.
#ifndef CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_REDUNDANT_NODES_H_
#define CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_REDUNDANT_NODES_H_

#include "core/graph/pass.h"

namespace caesura {

std::shared_ptr<Pass> MakeRedundantNodesPass();

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_REDUNDANT_NODES_H_
