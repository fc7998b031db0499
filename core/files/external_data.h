// SPDX-License-Identifier: Apache-2.0
// The one place that opens a file whose name comes from a model: for reading; our writer names its
// files itself (model_writer.h) and never takes a name that a model brought along. A folder is
// opened once; files are then opened beneath it by the kernel (openat2 with RESOLVE_BENEATH, which
// follows links as long as they stay beneath; or one path component at a time without following
// links), so no name can lead outside and nothing can be exchanged between check and open. Only
// regular files with a single hard link are taken.
//
// Caches of model hubs keep files by their hash, and folders of relative links to them:
//   snapshots/1/net.onnx -> ../../blobs/8d5e    snapshots/1/net.onnx.data -> ../../blobs/f00c
// If the user's own path of the model is such a link, its target's folder is trusted as well: a
// link among the model's external data may lead to a file that lies directly in it, and to nothing
// else outside of the model's folder.
//
// Thread safety: none.
#ifndef CAESURA_CORE_FILES_EXTERNAL_DATA_H_
#define CAESURA_CORE_FILES_EXTERNAL_DATA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"

namespace caesura {

// An open file; closes it.
class FileHandle {
 public:
  explicit FileHandle(int fd) : fd_(fd) {}
  FileHandle(const FileHandle&) = delete;
  FileHandle& operator=(const FileHandle&) = delete;
  ~FileHandle();
  int fd() const { return fd_; }

 private:
  int fd_;
};

// A file beneath the folder, opened for reading.
class ExternalFile {
 public:
  ExternalFile(std::string location, std::unique_ptr<FileHandle> file, uint64_t size)
      : location_(std::move(location)), file_(std::move(file)), size_(size) {}
  uint64_t size() const { return size_; }
  // Fails with kInvalidModel unless [offset, offset + length) lies within the file.
  Status CheckRange(uint64_t offset, uint64_t length) const;
  // REQUIRES: CheckRange(offset, length) was ok. Fails with kIoError, also when the file has shrunk
  // since.
  Status Read(uint64_t offset, uint64_t length, char* out) const;

 private:
  std::string location_;
  std::unique_ptr<FileHandle> file_;
  uint64_t size_;
};

class ExternalFolder {
 public:
  // `path` is the user's own word and may be a link; empty is the current folder. So is
  // `model_path`; empty: the model is in no file, or the folder is not its own.
  static Result<std::unique_ptr<ExternalFolder>> Open(const std::string& path,
                                                      const std::string& model_path = "");

  // The file at `location`, relative to the folder; stays open until the next call. Fails with
  // kInvalidModel for a location that leaves the folder, goes through a link that leads outside
  // (but for the one above), or names no regular file with a single hard link.
  Result<const ExternalFile*> OpenForReading(const std::string& location);

  // Makes openat2 look missing: for tests of the other way.
  void DisableOpenat2() { has_openat2_ = false; }

 private:
  explicit ExternalFolder(std::unique_ptr<FileHandle> folder) : folder_(std::move(folder)) {}
  Result<int> OpenBeneath(const std::string& location, int flags);
  int OpenComponents(const std::string& location, int flags) const;
  // Opens in beside_, by its name, the target of the link at `location`; -1 where that is not the
  // same file.
  int OpenBeside(const std::string& location, int flags) const;

  std::unique_ptr<FileHandle> folder_;
  std::unique_ptr<FileHandle>
      beside_;  // the folder that the model's file really lies in; null: none
  bool has_openat2_ = true;
  std::string open_location_;
  std::unique_ptr<ExternalFile> open_file_;
};

// Refuses what is no plain relative path: empty, absolute, with "..", empty components or NUL.
// kInvalidModel.
Status CheckLocation(const std::string& location);

}  // namespace caesura

#endif  // CAESURA_CORE_FILES_EXTERNAL_DATA_H_
