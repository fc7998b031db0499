// SPDX-License-Identifier: Apache-2.0
// NumPy's file formats: .npy holds one array, .npz a zip archive of them (numpy.save, savez and
// savez_compressed).
//
// Any bytes are safe to read; what is wrong with them comes back as kInvalidModel. Arrays of Python
// objects are refused: they are pickles. Text arrays (dtype <U) become string tensors; Fortran
// order and the other byte order are turned.
#ifndef CAESURA_CORE_FILES_NPY_H_
#define CAESURA_CORE_FILES_NPY_H_

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "core/tensor/tensor.h"

namespace caesura {

class FileSystem;  // core/files/file_system.h
FileSystem& PosixFileSystem();

// The tensor in the bytes of a .npy file.
Result<Tensor> TensorFromNpy(std::string_view bytes);
// The inverse. Fails with kUnsupported for dtypes that NumPy does not have (bfloat16, the 8- and
// 4-bit floats, int4, strings). REQUIRES: host memory.
Result<std::string> TensorToNpy(const Tensor& tensor);

// The limit of an archive that is read; a larger one is refused with kInvalidModel.
struct NpzReadOptions {
  size_t max_bytes = size_t{1} << 36;  // of all arrays together, when decompressed
};
// Arrays by name, without ".npy".
Result<std::map<std::string, Tensor>> ReadNpz(const std::string& path,
                                              const NpzReadOptions& options = {},
                                              FileSystem& files = PosixFileSystem());
// Replaces `path` crash-atomically. Equal contents give equal bytes.
Status WriteNpz(const std::string& path, const std::map<std::string, Tensor>& arrays,
                bool compress = false, FileSystem& files = PosixFileSystem());

}  // namespace caesura

#endif  // CAESURA_CORE_FILES_NPY_H_
