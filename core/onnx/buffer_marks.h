// SPDX-License-Identifier: Apache-2.0
// Marks initializers as no parameters, as PyTorch's exporter does: MarkedBuffers (model_reader.h)
// gives them back, and training leaves them as they are.
#ifndef CAESURA_CORE_ONNX_BUFFER_MARKS_H_
#define CAESURA_CORE_ONNX_BUFFER_MARKS_H_

#include <string>
#include <unordered_set>

#include "core/graph/graph.h"

namespace caesura {

// Marks these initializers, and no others.
void SetMarkedBuffers(const std::unordered_set<std::string>& names, Model* model);

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_BUFFER_MARKS_H_
