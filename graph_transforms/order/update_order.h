// SPDX-License-Identifier: Apache-2.0
// update_order: the pass that has each gradient of a step live as short as it can
// (CommitMode::kEagerConsume). It only moves nodes:
//   - an update, but for collectives, goes right after the last node that it needs or that reads,
//   as a view too, what it writes;
//   - a node that alone reads what it reads, and makes no more bytes of it (a weight's gradient
//   transposed on its way to
//     the update), goes right after the last node that it needs;
//   - a node of the backward whose result waits for another part (of the gradient of a weight that
//   two layers share)
//     goes right in front of the first reader, where what it reads takes fewer bytes than what it
//     makes, or as many and it alone reads them.
// Sizes that types do not tell leave the nodes of the last two kinds where they are.
#ifndef CAESURA_GRAPH_TRANSFORMS_ORDER_UPDATE_ORDER_H_
#define CAESURA_GRAPH_TRANSFORMS_ORDER_UPDATE_ORDER_H_

#include <memory>
#include <string>
#include <vector>

#include "core/graph/pass.h"

namespace caesura {

// `parameters`: names of the initializers that updates write. To be run after passes that fuse or
// move nodes: they see no readers through views.
std::shared_ptr<Pass> MakeUpdateOrderPass(std::vector<std::string> parameters);

// yield_order: the pass that moves each yield after the last node that reads, as a view too, one of
// the graph inputs that it releases (YieldOp's `released_inputs`), so that the caller may overwrite
// them while the run waits there. Yields keep their order. To be run after passes that fuse or move
// nodes.
std::shared_ptr<Pass> MakeYieldOrderPass();

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_ORDER_UPDATE_ORDER_H_
