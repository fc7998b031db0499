// SPDX-License-Identifier: Apache-2.0
// Models as text, in ONNX's syntax:
//
//   <ir_version: 10, opset_import: ["" : 23]>
//   net (float[N, 4] x) => (float[N, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
//     y = MatMul (x, w)
//   }
#ifndef CAESURA_CORE_ONNX_GRAPH_TEXT_H_
#define CAESURA_CORE_ONNX_GRAPH_TEXT_H_

#include <string>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// The options of ParseModelText.
struct TextOptions {
  // Off: nodes keep the semantics of the opsets that the text names.
  bool normalise_opsets = true;
};

// The model that ReadModel would give for the same model in a file. On failure says what is wrong
// and where.
Result<Model> ParseModelText(const std::string& text, const TextOptions& options = {});
// Text that ParseModelText takes again. Tensors are written out in full. A model that cannot be
// written gives the reason instead.
std::string ModelText(const Model& model);

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_GRAPH_TEXT_H_
