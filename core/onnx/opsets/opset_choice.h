// SPDX-License-Identifier: Apache-2.0
// Private to core/onnx: which versions a written model declares. The lowest that give every node
// its semantics, so that readers that are older than we are can take the file.
#ifndef CAESURA_CORE_ONNX_OPSETS_OPSET_CHOICE_H_
#define CAESURA_CORE_ONNX_OPSETS_OPSET_CHOICE_H_

#include <map>
#include <string>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// True if `opset` of the node's domain gives it the semantics that it has.
bool FitsOpset(const Node& node, int opset);

// Domain -> version for all domains that nodes use. Fails with kUnsupported, naming the nodes,
// where none fits. `opset`: of the default domain; 0: the lowest, as above.
Result<std::map<std::string, int>> ChooseOpsets(const Model& model, int opset = 0);

// The IR version that the default domain's `opset` and the element types of the model's
// initializers need. `least`: no lower one.
int ChooseIrVersion(const Model& model, int opset, int least);

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_OPSETS_OPSET_CHOICE_H_
