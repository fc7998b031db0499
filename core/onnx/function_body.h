// SPDX-License-Identifier: Apache-2.0
// Ops that ONNX defines by other ops: what runs where no kernel is, and what is differentiated
// where no rule is.
#ifndef CAESURA_CORE_ONNX_FUNCTION_BODY_H_
#define CAESURA_CORE_ONNX_FUNCTION_BODY_H_

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// True if ExpandFunctionBody would have something to put in place (it may still find that the body
// does not exist for the inputs at hand).
bool HasFunctionBody(const Node& node);

// Replaces `node` by the body of its schema's function, at the node's place in the list. The node's
// output values stay the same values; the new nodes take its phase, source and provider, names that
// begin with its name, the newest semantics, and inferred types. False, with the graph unchanged,
// when the schema has no body, or none for the types of these inputs. `node` is gone when true
// comes back. Nothing in the body is expanded further.
Result<bool> ExpandFunctionBody(Graph& graph, Node* node);

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_FUNCTION_BODY_H_
