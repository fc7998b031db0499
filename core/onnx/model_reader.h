// SPDX-License-Identifier: Apache-2.0
// From an ONNX file to a Model: checked, its functions expanded, its nodes at the newest semantics,
// its types inferred.
//
// Any bytes are safe to read: what is wrong with them comes back as kInvalidModel (or kUnsupported,
// for what ONNX allows and the IR does not have), never as a crash or as an allocation larger than
// what the bytes themselves take. Paths, sizes and offsets in a file are not believed: external
// data open through core/files/external_data.h.
#ifndef CAESURA_CORE_ONNX_MODEL_READER_H_
#define CAESURA_CORE_ONNX_MODEL_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// Limits on a model that is read, and the folder of its external data.
struct ReadOptions {
  // Limits. A model beyond one of them is refused with the limit named.
  size_t max_model_bytes =
      (size_t{1} << 31) - 1;    // of the file without external data; protobuf takes no more
  int64_t max_nodes = 1 << 20;  // after function expansion
  int max_depth = 32;           // of bodies and function calls in each other
  size_t max_tensor_bytes = size_t{1} << 38;  // of all tensors, external ones included
  size_t max_dense_bytes = size_t{1} << 28;   // of all sparse tensors when made dense
  // The folder that external data are looked for in. Empty: the model's own folder; for bytes: none
  // are allowed.
  std::string external_data_folder;
  // Off: nodes keep the semantics of the opsets that the model names (Node::since_version says
  // which).
  bool normalise_opsets = true;
};

// Reads a model from a file, or from bytes in memory. On failure the message begins with the path.
Result<Model> ReadModel(const std::string& path, const ReadOptions& options = {});
Result<Model> ReadModelBytes(std::string_view bytes, const ReadOptions& options = {});

// Names of initializers that are no parameters: PyTorch's exporter marks a module's buffers and
// constants so, and what it folded from no parameter (masks, rotary tables). A model that is
// written again keeps the marks, in its metadata.
std::unordered_set<std::string> MarkedBuffers(const Model& model);
// Names of initializers that the exporter folded from others, where it was not told optimize=False.
std::unordered_set<std::string> FoldedInitializers(const Model& model);

// --- models as text, in ONNX's syntax ---
//
//   <ir_version: 10, opset_import: ["" : 23]>
//   net (float[N, 4] x) => (float[N, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
//     y = MatMul (x, w)
//   }

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

#endif  // CAESURA_CORE_ONNX_MODEL_READER_H_
