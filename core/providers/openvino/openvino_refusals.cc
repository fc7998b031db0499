// SPDX-License-Identifier: Apache-2.0
#include "core/providers/openvino/openvino_refusals.h"

#include <cstring>
#include <string>

#include "core/providers/openvino/openvino_plugin.h"

namespace caesura_openvino {
namespace {

constexpr int32_t kFloat32 = 1, kBool = 9;

struct RefusedOp {
  const char* op_type;
  const char* why;
};

// Found by ONNX's node tests (python -m caesura.conformance --provider openvino).
constexpr RefusedOp kRefused[] = {

};

// The CPU device computes in float32 and int32: wider numbers would lose bits, and halves gain them.
const char* RefusedType(const CaesuraGraph* graph, const CaesuraGraphNode& node) {
  for (int32_t i = 0; i < node.input_count; ++i) {
    if (node.inputs[i] < 0) continue;
    const CaesuraTensor& tensor = api->provider->value(graph, static_cast<size_t>(node.inputs[i]))->tensor;
    if (tensor.data != nullptr || tensor.dtype == kFloat32 || tensor.dtype == kBool) continue;
    return "an input that is no constant is neither float32 nor bool";
  }
  for (int32_t i = 0; i < node.output_count; ++i) {
    if (node.outputs[i] < 0) continue;
    const CaesuraTensor& tensor = api->provider->value(graph, static_cast<size_t>(node.outputs[i]))->tensor;
    if (tensor.dtype != kFloat32 && tensor.dtype != kBool) return "an output is neither float32 nor bool";
  }
  return nullptr;
}

}  // namespace

const char* Refusal(const CaesuraGraph* graph, size_t i) {
  const CaesuraGraphNode& node = *api->provider->node(graph, i);
  if (std::strcmp(node.domain, "") != 0) return "no op of ONNX";
  for (const RefusedOp& refused : kRefused) {
    if (std::strcmp(node.op_type, refused.op_type) == 0) return refused.why;
  }
  return RefusedType(graph, node);
}

}  // namespace caesura_openvino
