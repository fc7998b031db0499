// SPDX-License-Identifier: Apache-2.0
// The one place that opens a file whose name comes from a model: for reading; our writer names its files itself
// (model_writer.h) and never takes a name that a model brought along. A folder is opened once; files are then
// opened beneath it by the kernel (openat2 with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS, or one path component at
// a time without following links), so no name can lead outside and nothing can be exchanged between check and
// open. Only regular files with a single link are taken.
//
// Thread safety: none.
#ifndef CAESURA_CORE_LOAD_EXTERNAL_DATA_H_
#define CAESURA_CORE_LOAD_EXTERNAL_DATA_H_

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
  // REQUIRES: CheckRange(offset, length) was ok. Fails with kIoError, also when the file has shrunk since.
  Status Read(uint64_t offset, uint64_t length, char* out) const;

 private:
  std::string location_;
  std::unique_ptr<FileHandle> file_;
  uint64_t size_;
};

class ExternalFolder {
 public:
  // `path` is the user's own word and may be a link; empty is the current folder.
  static Result<std::unique_ptr<ExternalFolder>> Open(const std::string& path);

  // The file at `location`, relative to the folder; stays open until the next call. Fails with kInvalidModel for a
  // location that leaves the folder, goes through a link, or names no regular file with a single link.
  Result<const ExternalFile*> OpenForReading(const std::string& location);

  // Makes openat2 look missing: for tests of the other way.
  void DisableOpenat2() { has_openat2_ = false; }

 private:
  explicit ExternalFolder(std::unique_ptr<FileHandle> folder) : folder_(std::move(folder)) {}
  Result<int> OpenBeneath(const std::string& location, int flags);
  int OpenComponents(const std::string& location, int flags) const;

  std::unique_ptr<FileHandle> folder_;
  bool has_openat2_ = true;
  std::string open_location_;
  std::unique_ptr<ExternalFile> open_file_;
};

// Refuses what is no plain relative path: empty, absolute, with "..", empty components or NUL. kInvalidModel.
Status CheckLocation(const std::string& location);

}  // namespace caesura

#endif  // CAESURA_CORE_LOAD_EXTERNAL_DATA_H_
