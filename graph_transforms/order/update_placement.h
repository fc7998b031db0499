// SPDX-License-Identifier: Apache-2.0
// update_placement: the pass that has updates run on the device that holds their parameters.
#ifndef CAESURA_GRAPH_TRANSFORMS_ORDER_UPDATE_PLACEMENT_H_
#define CAESURA_GRAPH_TRANSFORMS_ORDER_UPDATE_PLACEMENT_H_

#include <memory>
#include <string>
#include <vector>

#include "core/graph/pass.h"
#include "core/providers/execution_provider.h"

namespace caesura {

// Pins optimizer nodes (Node::set_provider) to the device that holds the parameters they read. All
// others stay on the host: those of parameters on the host, and those without a kernel. Nodes that
// are pinned already stay where they are. Does nothing where no parameter is on a device.
std::shared_ptr<Pass> MakeUpdatePlacementPass(std::vector<std::string> parameters,
                                              ProviderList providers);

// The device provider that is asked first to run the node; null where that is the host's.
const ExecutionProvider* DeviceFor(const Node& node, const ProviderList& providers);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_ORDER_UPDATE_PLACEMENT_H_
