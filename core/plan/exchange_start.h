// SPDX-License-Identifier: Apache-2.0
// Exchanges among ranks read values that are sized at run time by their types.
#ifndef CAESURA_CORE_PLAN_EXCHANGE_START_H_
#define CAESURA_CORE_PLAN_EXCHANGE_START_H_

#include "core/graph/graph.h"

namespace caesura {

// True if the node starts an exchange of gradients or statistics among ranks. It lays its outputs
// out as one block of the arena, so it is planned also if an input is sized at run time (the
// gradient of an expert, whose tokens are chosen by their values): by that input's type, which is
// that of a parameter.
inline bool StartsExchange(const Node& node) {
  return node.Is("CollectiveStart", kCaesuraDomain) ||
         node.Is("ReduceScatterStart", kCaesuraDomain) ||
         node.Is("OrderedSumStart", kCaesuraDomain);
}

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_EXCHANGE_START_H_
