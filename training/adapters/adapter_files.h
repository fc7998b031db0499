// SPDX-License-Identifier: Apache-2.0
// Adapters on disk, as PEFT has them: a folder with adapter_config.json and
// adapter_model.safetensors, whose tensors are base_model.model.LAYER.lora_A.weight [rank, in] and
// base_model.model.LAYER.lora_B.weight [out, rank].
//
// PEFT finds a module by the name LAYER. It drops a tensor whose module is not there without a
// word, so the layers' names must be the module's own: export it with its paths (torch.onnx.export
// with dynamo=True).
#ifndef CAESURA_TRAINING_ADAPTERS_ADAPTER_FILES_H_
#define CAESURA_TRAINING_ADAPTERS_ADAPTER_FILES_H_

#include <string>

#include "core/base/status.h"
#include "training/adapters/lora.h"

namespace caesura {

class FileSystem;  // core/files/file_system.h

// Writes the folder, which is made where there is none. Each of the two files is replaced as a
// whole.
Status SaveAdapter(const Adapter& adapter, const std::string& folder);

// Any bytes are safe to read. kNotFound where a file is not there; kInvalidModel names the entry of
// the configuration or the tensor that is not as it should be; kUnsupported names what PEFT may
// have in an adapter and this has not: DoRA, rank-stabilised scaling, ranks and alphas by layer,
// biases, modules that were saved as a whole, adapters of other kinds.
Result<Adapter> ReadAdapter(const std::string& folder);
// The same on another file system.
Result<Adapter> ReadAdapter(const std::string& folder, FileSystem& files);

}  // namespace caesura

#endif  // CAESURA_TRAINING_ADAPTERS_ADAPTER_FILES_H_
