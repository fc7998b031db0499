// SPDX-License-Identifier: Apache-2.0
// Named arrays in any of the formats that the command takes; the file's ending says which.
#ifndef CAESURA_TRAINING_COMMAND_TENSOR_FILES_H_
#define CAESURA_TRAINING_COMMAND_TENSOR_FILES_H_

#include <string>

#include "core/files/safetensors.h"

namespace caesura::command {

// .safetensors, .npz, or .npy (its one array is named after the file).
Result<TensorFile> ReadTensorFile(const std::string& path);
// An .npy takes exactly one array. Metadata are kept by .safetensors only.
Status WriteTensorFile(const std::string& path, const TensorFile& contents, bool compress = false);

}  // namespace caesura::command

#endif  // CAESURA_TRAINING_COMMAND_TENSOR_FILES_H_
