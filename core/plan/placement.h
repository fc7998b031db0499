// SPDX-License-Identifier: Apache-2.0
// The provider of each node of a graph and of its bodies, and the device of each value. A node
// goes to the provider that it is pinned to (Node::provider), otherwise to the first one that has a
// kernel for it; strings, sequences, maps and optionals stay on the host, and so do optimizer
// nodes that are pinned to no device: who pins them has seen that the parameters live there
// (training/step/parameter_placement.h). A value is on the device of the node that makes it, or on
// the host where the kernel's definition says so (KernelDef::host_outputs); graph inputs are where
// the caller says, initializers on the host.
//
// If and Loop run on the host and hand values on to their bodies wherever they are. What they give
// back is on a device as soon as one of its makers is: a branch, a loop's start or one of its
// iterations. Scan, and the outputs of Loop that are stacked, work in host memory.
//
// Devices are indices into DevicesOf(providers): 0 is the host.
#ifndef CAESURA_CORE_PLAN_PLACEMENT_H_
#define CAESURA_CORE_PLAN_PLACEMENT_H_

#include <optional>
#include <unordered_map>
#include <vector>

#include "core/plan/plan_data.h"

namespace caesura {

// The host, then the other devices in the order of their providers.
std::vector<DeviceMemory> DevicesOf(const ProviderList& providers);

// The providers that may run a node, best first; `why`, if given, says of each of the others why it
// does not.
std::vector<const ExecutionProvider*> ProvidersFor(const Node& node, const ProviderList& providers,
                                                   std::string* why = nullptr);

// If, Loop and Scan: their bodies run as graphs of their own. (Other ops may have a body to say
// what they compute.)
bool RunsBodies(const Node& node);

// Thread safety: const access from many threads. The graph stays unchanged meanwhile.
class Placement {
 public:
  static constexpr int kAnywhere = -1;

  // `given`: where graph inputs and outer values are; those not listed are on the host.
  Placement(const Graph& graph, const ProviderList& providers,
            std::unordered_map<const Value*, int> given = {});

  const std::vector<DeviceMemory>& devices() const { return devices_; }
  // The index of `device`; -1 when no provider serves it.
  int IndexOf(Device device) const;
  // Null when no provider has a kernel.
  const ExecutionProvider* ProviderOf(const Node& node) const;
  int DeviceOf(const Value* value) const;
  // The device on which `provider` makes output `i` of the node.
  int OutputDevice(const Node& node, const ExecutionProvider& provider, int i) const;
  // The device on which `provider` needs input `i` of the node; kAnywhere where it hands the value
  // on without a look.
  int InputDevice(const Node& node, const ExecutionProvider& provider, int i) const;
  // The devices on which the outputs of a body of the node are wanted, by output; those not listed:
  // on the host.
  std::vector<std::optional<Device>> BodyResults(const Node& node,
                                                 const ExecutionProvider& provider) const;

 private:
  void Walk(const Graph& graph);
  void PlaceNode(const Node& node);
  void PlaceLoop(const Node& node);

  const ProviderList& providers_;
  std::vector<DeviceMemory> devices_;
  std::unordered_map<const Value*, int> device_of_;  // those that are not on the host
  std::unordered_map<const Node*, std::vector<int>>
      carried_;  // by Loop: where its carried values are
};

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_PLACEMENT_H_
