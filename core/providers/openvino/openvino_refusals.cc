// SPDX-License-Identifier: Apache-2.0
#include "core/providers/openvino/openvino_refusals.h"

#include <cstring>
#include <string>

#include "core/providers/openvino/openvino_plugin.h"

namespace caesura_openvino {
namespace {

constexpr int32_t kFloat32 = 1, kBool = 9;

using Condition = bool (*)(const CaesuraGraph* graph, size_t node);

int64_t IntOf(const CaesuraGraph* graph, size_t node, const char* name) {
  size_t count = 0;
  const int64_t* found = ProviderApi().ints(graph, node, name, &count);
  return count == 0 ? 0 : *found;
}

bool Says(const CaesuraGraph* graph, size_t node, const char* name, const char* value) {
  const char* found = ProviderApi().string(graph, node, name);
  return found != nullptr && std::strcmp(found, value) == 0;
}

bool Always(const CaesuraGraph*, size_t) { return true; }

bool HasOneInput(const CaesuraGraph* graph, size_t node) {
  return ProviderApi().node(graph, node)->input_count == 1;
}

bool HasWindowOrCausalPast(const CaesuraGraph* graph, size_t node) {
  size_t count = 0;
  for (const char* window : {"left_window_size", "right_window_size"}) {
    if (ProviderApi().ints(graph, node, window, &count) != nullptr) return true;
  }
  return IntOf(graph, node, "is_causal") != 0 && ProviderApi().node(graph, node)->input_count > 4;
}

bool SamplesOtherwise(const CaesuraGraph* graph, size_t node) {
  return Says(graph, node, "mode", "cubic") || IntOf(graph, node, "antialias") != 0 ||
         Says(graph, node, "coordinate_transformation_mode", "align_corners");
}

bool IsColumnsFirst(const CaesuraGraph* graph, size_t node) {
  return Says(graph, node, "mode", "CRD");
}

bool RoundsUp(const CaesuraGraph* graph, size_t node) {
  return IntOf(graph, node, "ceil_mode") != 0;
}

bool IsBatchFirst(const CaesuraGraph* graph, size_t node) {
  return IntOf(graph, node, "layout") != 0;
}

bool IsToBool(const CaesuraGraph* graph, size_t node) { return IntOf(graph, node, "to") == kBool; }

struct RefusedOp {
  const char* op_type;
  Condition when;
  const char* why;
};

// Found by ONNX's node tests (python -m caesura.conformance --provider openvino), and by values
// that are not finite. What stays: Relu, Max, Min and Clip of NaN are numbers and Exp of it is
// infinite, MaxPool of -inf alone is the lowest number, and Gelu of inf is NaN.
constexpr RefusedOp kRefused[] = {
    {"Attention", HasWindowOrCausalPast,
     "windows are ignored, and causal masks begin where the past does"},
    {"Cast", IsToBool, "NaN becomes false"},
    {"DFT", Always, "the axis is another one; sums are less exact than the node tests ask"},
    {"GRU", IsBatchFirst, "the final state has another shape"},
    {"GreaterOrEqual", Always, "true where one of the two is NaN"},
    {"LSTM", IsBatchFirst, "the final states have another shape"},
    {"LessOrEqual", Always, "true where one of the two is NaN"},
    {"Max", HasOneInput, "the output is not written"},
    {"MaxPool", RoundsUp, "a last window that begins in the padding is kept"},
    {"Mean", HasOneInput, "the output is not written"},
    {"Min", HasOneInput, "the output is not written"},
    {"RNN", IsBatchFirst, "the final state has another shape"},
    {"ReduceMax", Always, "rows of -inf give the lowest number, so masks of attention go wrong"},
    {"ReduceMin", Always, "rows of inf give the greatest number"},
    {"Resize", SamplesOtherwise, "cubic, antialias and align_corners sample elsewhere"},
    {"SpaceToDepth", IsColumnsFirst, "blocks are laid out as for DCR"},
    {"Sum", HasOneInput, "the output is not written"},
};

// The CPU device computes in float32 and int32: wider numbers would lose bits, and halves gain
// them.
const char* RefusedType(const CaesuraGraph* graph, const CaesuraGraphNode& node) {
  for (int32_t i = 0; i < node.input_count; ++i) {
    if (node.inputs[i] < 0) continue;
    const CaesuraTensor& tensor =
        ProviderApi().value(graph, static_cast<size_t>(node.inputs[i]))->tensor;
    if (tensor.data != nullptr || tensor.dtype == kFloat32 || tensor.dtype == kBool) continue;
    return "an input that is no constant is neither float32 nor bool";
  }
  for (int32_t i = 0; i < node.output_count; ++i) {
    if (node.outputs[i] < 0) continue;
    const CaesuraTensor& tensor =
        ProviderApi().value(graph, static_cast<size_t>(node.outputs[i]))->tensor;
    if (tensor.dtype != kFloat32 && tensor.dtype != kBool)
      return "an output is neither float32 nor bool";
  }
  return nullptr;
}

}  // namespace

const char* Refusal(const CaesuraGraph* graph, size_t i) {
  const CaesuraGraphNode& node = *ProviderApi().node(graph, i);
  if (std::strcmp(node.domain, "") != 0) return "no op of ONNX";
  for (const RefusedOp& refused : kRefused) {
    if (std::strcmp(node.op_type, refused.op_type) == 0 && refused.when(graph, i))
      return refused.why;
  }
  return RefusedType(graph, node);
}

}  // namespace caesura_openvino
