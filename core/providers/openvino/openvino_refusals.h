// SPDX-License-Identifier: Apache-2.0
// Nodes that OpenVINO would take and is not given, as it would compute something else than ONNX
// says.
#ifndef CAESURA_CORE_PROVIDERS_OPENVINO_OPENVINO_REFUSALS_H_
#define CAESURA_CORE_PROVIDERS_OPENVINO_OPENVINO_REFUSALS_H_

#include "core/plugin/caesura_provider.h"

namespace caesura_openvino {

// Why the node is not asked for; null: nothing speaks against it.
const char* Refusal(const CaesuraGraph* graph, size_t node);

}  // namespace caesura_openvino

#endif  // CAESURA_CORE_PROVIDERS_OPENVINO_OPENVINO_REFUSALS_H_
