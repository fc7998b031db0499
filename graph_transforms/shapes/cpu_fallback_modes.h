// SPDX-License-Identifier: Apache-2.0
// The two simpler ways to choose nodes for the host, to compare with. Private to graph_transforms.
#ifndef CAESURA_GRAPH_TRANSFORMS_SHAPES_CPU_FALLBACK_MODES_H_
#define CAESURA_GRAPH_TRANSFORMS_SHAPES_CPU_FALLBACK_MODES_H_

#include <unordered_set>

#include "graph_transforms/shapes/shape_chains.h"

namespace caesura {

// From host outputs (Shape, Size) and graph inputs downwards: a node of the main graph whose inputs
// are all on the host already, graph inputs, or constants of at most 100 elements; none of them a
// 16-bit float; and none that the device reads on the host anyway.
std::unordered_set<const Node*> ForwardFallback(const Graph& graph, const ShapeChains& chains);

// The above, and everything upwards from the shape inputs of Range, Reshape, Unsqueeze, Expand,
// ConstantOfShape and Slice up to Shape, Size and graph inputs, whatever it computes; nodes without
// a kernel on the host excepted, which could not run.
std::unordered_set<const Node*> SeedFallback(const Graph& graph, const ShapeChains& chains);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SHAPES_CPU_FALLBACK_MODES_H_
