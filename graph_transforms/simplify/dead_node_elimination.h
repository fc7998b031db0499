// SPDX-License-Identifier: Apache-2.0
// dead_node_elimination: nodes whose outputs nobody reads or exports go, in bodies too. Nodes of
// Phase::kOptimizer and YieldOps stay: they act.
#ifndef CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_DEAD_NODE_ELIMINATION_H_
#define CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_DEAD_NODE_ELIMINATION_H_

#include "core/graph/pass.h"

namespace caesura {

std::shared_ptr<Pass> MakeDeadNodeEliminationPass();

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_DEAD_NODE_ELIMINATION_H_
