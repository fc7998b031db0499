// SPDX-License-Identifier: Apache-2.0
// constant_nodes: Constant nodes become initializers.
#ifndef CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_CONSTANT_NODES_H_
#define CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_CONSTANT_NODES_H_

#include "core/graph/pass.h"

namespace caesura {

std::shared_ptr<Pass> MakeConstantNodesPass();

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_CONSTANT_NODES_H_
