// SPDX-License-Identifier: Apache-2.0
// Ops of ours in ONNX's operators: what other runtimes can read.
#ifndef CAESURA_GRAPH_TRANSFORMS_STANDARD_OPS_H_
#define CAESURA_GRAPH_TRANSFORMS_STANDARD_OPS_H_

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// Puts in the place of each node that has a body (OpDef::body), in bodies of control flow, too, the
// nodes that the body writes. A graph that draws random numbers gets the inputs of
// core/gradient/op_body.h. Fails with kUnsupported, listing all nodes of domains other than ONNX's
// that have none, each with the reason and the source line that the exporter left; the graph is
// then good for nothing. Types must have been inferred.
Status WriteInStandardOps(Graph& graph);

// Puts other operators of ONNX in the place of those whose gradient is an op of ours without a body
// (recurrent layers), so that their gradients have bodies. For a graph that is to be
// differentiated. Nodes whose body does not apply stay: their gradients are refused above.
Status WriteBeforeGradients(Graph& graph);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_STANDARD_OPS_H_
