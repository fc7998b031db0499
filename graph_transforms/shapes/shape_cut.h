// SPDX-License-Identifier: Apache-2.0
// Chooses the device of each node of the shape chains, so that as few values as possible are
// copied. Private to graph_transforms.
//
// A movable node may run on the host, on its device, or on both: it is tiny, and running it twice
// is cheaper than a copy. So the two directions can be settled one after the other, each by a
// minimal cut through the values:
//   1. To the host. Source: what only the device can make. Sink: what somebody reads on the host.
//   The cut values are
//      copied, the movable nodes after them run on the host. Of the cheapest cuts the one closest
//      to the source.
//   2. To the device. Source: what only the host can make. Sink: what nodes that stay on the device
//   read there. The cut
//      values are copied, the nodes after them run on the device. Only values that the host can
//      make without another copy may be cut. Of the cheapest cuts the one closest to the sink,
//      which leaves the device the fewest nodes.
// Leaving all nodes on the device is a cut in both networks, so neither direction ever has more
// copies than that.
//
// Bodies of If, Loop and Scan run not at all or many times, so each graph is settled for itself and
// none takes copies over from another. To the host from the outside in: a body takes what the host
// has anyway, and copies the rest itself. To the device from the inside out: what a body reads on
// the device and an outer node makes there is made there. What If and Loop hand on is in one place
// only, and is settled before: on the host where it is read there, and where all that it comes from
// can be made there without a copy.
#ifndef CAESURA_GRAPH_TRANSFORMS_SHAPES_SHAPE_CUT_H_
#define CAESURA_GRAPH_TRANSFORMS_SHAPES_SHAPE_CUT_H_

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "graph_transforms/shapes/min_cut.h"
#include "graph_transforms/shapes/shape_chains.h"

namespace caesura {

class ShapeCut {
 public:
  // A value, as the nodes of a graph see it: its own graph or one inside.
  using Seen = std::pair<const Value*, const Graph*>;
  struct SeenHash {
    size_t operator()(const Seen& seen) const {
      return std::hash<const void*>()(seen.first) * 31 + std::hash<const void*>()(seen.second);
    }
  };
  using SeenSet = std::unordered_set<Seen, SeenHash>;

  // `move_bodies` false: what If and Loop hand on stays where it is.
  ShapeCut(const ShapeChains& chains, bool move_bodies);

  // Movable nodes that run on the host, and those that (also) run on the device.
  bool OnHost(const Node& node) const { return on_host_.count(&node) > 0; }
  bool OnDevice(const Node& node) const { return on_device_.count(&node) > 0; }
  // True if some graph copies the value to the host.
  bool IsCopiedToHost(const Value* value) const {
    return std::any_of(chains_.graphs().begin(), chains_.graphs().end(),
                       [&](const Graph* graph) { return to_host_.count({value, graph}) > 0; });
  }
  // True if the value is handed on by If or Loop and comes to the host by that.
  bool IsSettled(const Value* value) const { return settled_.count(value) > 0; }
  bool settles() const { return !settled_.empty(); }

 private:
  class Network;

  void SettleBodyResults();
  std::unordered_set<const Value*> NeededOnHost() const;
  void CutToHost(const Graph* graph);
  void CutToDevice(const Graph* graph);
  void RunOnHost(const Seen& seen);
  void RunOnDevice(const Seen& seen);
  void FindAvailable(const Graph* graph);

  bool IsLink(const Value* value) const {
    return value != nullptr && !ShapeChains::IsConstant(value) && WhyNoShape(value).empty();
  }
  bool StartsOnHost(const Value* value) const {
    return settled_.count(value) > 0 || chains_.IsOnHost(value);
  }
  bool StaysOnDevice(const Value* value) const {
    return !StartsOnHost(value) && !chains_.IsMovable(value->producer());
  }
  bool IsAvailable(const Value* value, const Graph* where) const {
    return ShapeChains::IsConstant(value) || available_.count(value) > 0 ||
           to_host_.count({value, where}) > 0;
  }
  // Values that are read on the host, or on the device, whatever moves.
  std::vector<const Value*> Wanted(const Graph* graph, bool on_host) const;

  const ShapeChains& chains_;
  std::unordered_set<const Value*> settled_;     // handed on, and on the host
  std::unordered_set<const BodyResult*> moved_;  // whose results are settled_
  std::unordered_set<const Value*>
      fixed_;  // sources of what is handed on elsewhere: not to be moved by themselves
  std::unordered_set<const Value*>
      available_;  // the host can make them without being copied themselves
  std::unordered_set<const Value*>
      made_on_device_;  // for readers in bodies, or to be copied from there
  std::unordered_map<const Graph*, std::vector<const Value*>>
      read_in_;                  // links, by the graphs that read them
  SeenSet to_host_, to_device_;  // the cuts
  std::unordered_set<const Node*> on_host_, on_device_;
};

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SHAPES_SHAPE_CUT_H_
