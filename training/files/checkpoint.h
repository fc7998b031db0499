// SPDX-License-Identifier: Apache-2.0
// Checkpoint: all that a training run needs to go on, in one safetensors file that other frameworks
// read.
//
//   Checkpoint checkpoint;
//   checkpoint.parameters["fc.weight"] = weight;
//   checkpoint.properties["step"] = int64_t{1000};
//   RETURN_IF_ERROR(SaveCheckpoint(checkpoint, "run.ckpt"));
//
// In the file, tensor "parameter/NAME" is a parameter, "optimizer/NAME" is state of the optimizer,
// and "state/0" and so on are of a step that waits (core/runtime/snapshot_file.h); properties and a
// checksum are metadata. After a crash at any moment the file is the one saved before or the
// new one, whole.
#ifndef CAESURA_TRAINING_FILES_CHECKPOINT_H_
#define CAESURA_TRAINING_FILES_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include "core/execute/state_snapshot.h"
#include "core/files/file_system.h"
#include "core/tensor/tensor.h"

namespace caesura {

// The contents of a checkpoint file. Tensors are on the host. Copies share the tensors' bytes.
// Thread safety: as a std::map.
struct Checkpoint {
  using Property = std::variant<int64_t, double, std::string>;

  std::map<std::string, Tensor> parameters;
  std::map<std::string, Tensor> optimizer_state;
  // Step, schedule, random numbers, sampler: whatever is small. Strings are UTF-8; doubles come
  // back bit for bit (but for the payload of a NaN).
  std::map<std::string, Property> properties;
  // A step that waits in its middle; parameters and optimizer state are as it has left them there.
  std::optional<StateSnapshot> step = std::nullopt;

  // The property as T. Fails with kNotFound when it is not there, with kInvalidModel when it is of
  // another kind.
  template <typename T>
  Result<T> Get(const std::string& name) const {
    auto it = properties.find(name);
    if (it == properties.end()) return NotFound("the checkpoint has no property '" + name + "'");
    if (const T* value = std::get_if<T>(&it->second)) return *value;
    return InvalidModel("the checkpoint's property '" + name + "' is of another kind");
  }
};

// When it returns ok the checkpoint lasts; a failure leaves the one before (or, when only the very
// last step failed, perhaps the new one). Fails with kUnsupported for dtypes that safetensors does
// not have. REQUIRES: host memory.
Status SaveCheckpoint(const Checkpoint& checkpoint, const std::string& path,
                      FileSystem& files = PosixFileSystem());

// Fails with kNotFound when there is no such file, with kInvalidModel for a file that is no
// checkpoint or is damaged (any changed value is noticed), with kUnsupported for one that a newer
// release has written in a newer format.
Result<Checkpoint> RestoreCheckpoint(const std::string& path,
                                     FileSystem& files = PosixFileSystem());

}  // namespace caesura

#endif  // CAESURA_TRAINING_FILES_CHECKPOINT_H_
