// SPDX-License-Identifier: Apache-2.0
// BuildGradient: appends the backward part to a graph.
//
//   GradientOptions options;
//   options.ys = {{loss, nullptr}};
//   options.xs = parameters;
//   ASSIGN_OR_RETURN(GradientGraph gradient, BuildGradient(graph, options));
//   // gradient.dxs[i] is d loss / d parameters[i]
//
// Backward nodes stand in reverse order of the forward ones, so that saved activations die early
// and gradients become ready one by one. What the rules leave to the driver is done here: paths,
// accumulation, broadcasting, casts, expansion of function bodies, removal of what nobody reads.
#ifndef CAESURA_CORE_GRADIENT_GRADIENT_BUILDER_H_
#define CAESURA_CORE_GRADIENT_GRADIENT_BUILDER_H_

#include <string>
#include <unordered_set>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// An output and the gradient that comes in from outside.
struct GradientSeed {
  Value* y;
  Value* dy = nullptr;  // null: ones in the shape of y (for a scalar loss)
};

// The gradient of an x that no y depends on.
enum class UnreachableGradient {
  kZeros,   // a tensor of zeros
  kAbsent,  // dxs holds null
  kError,   // all such x are named
};

struct GradientOptions {
  // One y may be listed several times; its gradients add up.
  std::vector<GradientSeed> ys;
  // Parameters, graph inputs or any other floating values, each once.
  std::vector<Value*> xs;
  // Gradients do not pass through these values.
  std::unordered_set<const Value*> stop;
  UnreachableGradient unreachable = UnreachableGradient::kZeros;
  // Put in front of the names of all new nodes and values.
  std::string name_prefix;
};

struct GradientGraph {
  std::vector<Value*> dxs;          // in the order of xs
  std::vector<Value*> unreachable;  // the xs that no y depends on
  std::vector<Node*> nodes;         // the backward nodes, in order
};

// Types must have been inferred (at least the dtypes): rules go by them. Forward nodes may gain
// outputs (masks, statistics) and may be replaced by their function bodies; values keep their names
// and identity. On failure: kUnsupported names every node without a gradient, with op type and
// source, at once; kInvalidArgument where ys, seeds or xs are no floating values of the graph. The
// graph is then valid and computes what it did.
Result<GradientGraph> BuildGradient(Graph& graph, const GradientOptions& options);

}  // namespace caesura

#endif  // CAESURA_CORE_GRADIENT_GRADIENT_BUILDER_H_
