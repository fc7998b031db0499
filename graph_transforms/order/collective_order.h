// SPDX-License-Identifier: Apache-2.0
// collective_order: the pass that has ranks exchange gradients while the backward goes on.
#ifndef CAESURA_GRAPH_TRANSFORMS_ORDER_COLLECTIVE_ORDER_H_
#define CAESURA_GRAPH_TRANSFORMS_ORDER_COLLECTIVE_ORDER_H_

#include <cstddef>
#include <memory>

#include "core/graph/pass.h"

namespace caesura {

// Steps that commit early have so many all-reduces under way at most.
inline constexpr ptrdiff_t kCollectivesUnderWay = 2;

// Puts each node that starts a collective right after the last node that it needs, in the order of
// their numbers, and each ReduceScatterWait in front of the start that follows it. With `early`
// each CollectiveWait comes in front of the second start after its own.
// To be run after all passes that move nodes, but for update_order, which leaves these in place.
std::shared_ptr<Pass> MakeCollectiveOrderPass(bool early);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_ORDER_COLLECTIVE_ORDER_H_
