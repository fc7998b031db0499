// SPDX-License-Identifier: Apache-2.0
// From a Model to an ONNX file that onnx's checker passes and ReadModel gives back: values, names,
// attributes, phases and sources included. The opset declared is the lowest, from 17 on, that gives
// every node its semantics, so that older readers can take the file.
#ifndef CAESURA_CORE_ONNX_MODEL_WRITER_H_
#define CAESURA_CORE_ONNX_MODEL_WRITER_H_

#include <cstddef>
#include <optional>
#include <string>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

class FileSystem;  // core/files/file_system.h

// The layout of a written model, and the file system that it is written to.
struct WriteOptions {
  // Initializers of more bytes go to a second file beside the model. Unset: none do, unless the
  // model would outgrow the 2 GB that one file can have.
  std::optional<size_t> external_above;
  FileSystem* files = nullptr;  // null: the operating system's
  // The version of ONNX's operators that is declared, and the IR version that came with it; nodes
  // that it does not have are refused, all of them (kUnsupported). 0: as above.
  int opset = 0;
};

// Replaces the file at `path`. A crash at any moment leaves the old model or the new one, whole.
// External data are in "<path>.<16 hex digits>.data", named after what is in them, so that a new
// save never touches the data of an old one; after a save, other files of that pattern are removed.
// Fails with kUnsupported when no opset version gives all nodes their semantics, with kIoError from
// the files. REQUIRES: initializers are on the host.
Status WriteModel(const Model& model, const std::string& path, const WriteOptions& options = {});

// All in one string. Fails with kUnsupported beyond 2 GB.
Result<std::string> SerializeModel(const Model& model);

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_MODEL_WRITER_H_
