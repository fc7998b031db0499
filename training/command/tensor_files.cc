// SPDX-License-Identifier: Apache-2.0
#include "training/command/tensor_files.h"

#include <utility>

#include "core/base/status_macros.h"
#include "core/files/npy.h"

namespace caesura::command {
namespace {

constexpr size_t kMaxNpyBytes = size_t{1} << 36;

// "b" and "npz" of "a/b.npz"
std::pair<std::string, std::string> StemAndEnding(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::pair(name, std::string())
                                  : std::pair(name.substr(0, dot), name.substr(dot + 1));
}

Status UnknownFormat(const std::string& path) {
  return InvalidArgument("'" + path + "' ends in none of .npz, .npy, .safetensors");
}

}  // namespace

Result<TensorFile> ReadTensorFile(const std::string& path) {
  const auto [stem, ending] = StemAndEnding(path);
  TensorFile out;
  if (ending == "safetensors") return ReadSafetensors(path);
  if (ending == "npz") {
    ASSIGN_OR_RETURN(out.tensors, ReadNpz(path));
    return out;
  }
  if (ending != "npy") return UnknownFormat(path);
  ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(PosixFileSystem(), path, kMaxNpyBytes));
  Result<Tensor> tensor = TensorFromNpy(bytes);
  if (!tensor.ok()) return tensor.status().WithPrefix("'" + path + "': ");
  out.tensors[stem] = *std::move(tensor);
  return out;
}

Status WriteTensorFile(const std::string& path, const TensorFile& contents, bool compress) {
  const std::string ending = StemAndEnding(path).second;
  if (ending == "safetensors") return WriteSafetensors(path, contents);
  if (ending == "npz") return WriteNpz(path, contents.tensors, compress);
  if (ending != "npy") return UnknownFormat(path);
  if (contents.tensors.size() != 1) {
    return InvalidArgument("an .npy holds one array, there are " +
                           std::to_string(contents.tensors.size()));
  }
  ASSIGN_OR_RETURN(const std::string bytes, TensorToNpy(contents.tensors.begin()->second));
  return WriteFileAtomically(PosixFileSystem(), path,
                             [&](WritableFile& file) { return file.Write(bytes); });
}

}  // namespace caesura::command
