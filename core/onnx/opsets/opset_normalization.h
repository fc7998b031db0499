// SPDX-License-Identifier: Apache-2.0
// Brings nodes of older opsets to the newest semantics of their op types, so that kernels, gradient
// rules and passes know one form of each. What changed when, and how it is rewritten, stands in one
// table (opset_normalization.cc).
#ifndef CAESURA_CORE_ONNX_OPSETS_OPSET_NORMALIZATION_H_
#define CAESURA_CORE_ONNX_OPSETS_OPSET_NORMALIZATION_H_

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// All nodes of the default domain, bodies included, and then the types of all values (InferShapes).
// Sets Node::since_version to that of the newest schema, and Model::opsets to the newest known
// versions. A node that cannot be brought there (its meaning hangs on a value that only a run
// knows) keeps its since_version.
Status NormalizeOpsets(Model& model);

// Normalizes some nodes of one graph as NormalizeOpsets does, with inference of their types in the
// given (topological) order.
Status NormalizeNodes(Graph& graph, const std::vector<Node*>& nodes);

// The last version of a default-domain op that changed what an unchanged node means; 1 when none
// did.
int MeaningSince(const std::string& op_type);

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_OPSETS_OPSET_NORMALIZATION_H_
