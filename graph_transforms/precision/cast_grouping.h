// SPDX-License-Identifier: Apache-2.0
// cast_grouping: casts of parameters become one node for all of them, CastAll (ai.caesura), which a
// device runs by as few launches as it can. For steps whose every run changes the parameters, so
// that no cast is kept from run to run, and for providers with a device.
#ifndef CAESURA_GRAPH_TRANSFORMS_PRECISION_CAST_GROUPING_H_
#define CAESURA_GRAPH_TRANSFORMS_PRECISION_CAST_GROUPING_H_

#include <memory>
#include <string>
#include <unordered_set>

#include "core/graph/pass.h"

namespace caesura {

// Groups the forward casts of the values named in `parameters`, which no node makes, from one
// floating type to another; each group stands where its first cast stood. Casts of other
// initializers stay, since planning folds them, and so do casts that are pinned to a device.
std::shared_ptr<Pass> MakeCastGroupingPass(std::unordered_set<std::string> parameters);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_PRECISION_CAST_GROUPING_H_
