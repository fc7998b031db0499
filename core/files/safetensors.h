// SPDX-License-Identifier: Apache-2.0
// safetensors: named tensors and a few named strings in one file that other frameworks read. Eight
// bytes with the length of a JSON header, the header, the tensors' bytes without gaps.
//
// Any bytes are safe to read: lengths, offsets, shapes, dtypes and names are checked against each
// other and against the file's size before anything is allocated for them. What is wrong comes back
// as kInvalidModel.
#ifndef CAESURA_CORE_FILES_SAFETENSORS_H_
#define CAESURA_CORE_FILES_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "core/files/file_system.h"
#include "core/tensor/tensor.h"

namespace caesura {

struct TensorFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

// A file whose header has been read and checked; tensors are read one by one, when asked for.
// Thread safety: const methods from any thread.
class SafetensorsReader {
 public:
  struct Entry {
    DType dtype = DType::kUndefined;
    Shape shape;
    uint64_t offset = 0;  // in the file
    uint64_t bytes = 0;
  };

  static Result<SafetensorsReader> Open(const std::string& path,
                                        FileSystem& files = PosixFileSystem());

  const std::map<std::string, Entry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // kNotFound when there is no such tensor.
  Result<Tensor> Read(const std::string& name) const;

 private:
  SafetensorsReader() = default;
  Status Parse();

  std::string path_;
  std::shared_ptr<const ReadableFile> file_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

// The whole file.
Result<TensorFile> ReadSafetensors(const std::string& path, FileSystem& files = PosixFileSystem());

// Replaces `path` crash-atomically (WriteFileAtomically). Equal contents give equal bytes. Fails
// with kUnsupported for a dtype that the format does not have (strings, complex128, int4 and
// narrower), with kInvalidArgument for names or metadata that are not UTF-8. REQUIRES: host memory.
Status WriteSafetensors(const std::string& path, const TensorFile& contents,
                        FileSystem& files = PosixFileSystem());

}  // namespace caesura

#endif  // CAESURA_CORE_FILES_SAFETENSORS_H_
