// SPDX-License-Identifier: Apache-2.0
// The file layer as an interface, so that tests can lose what was not synced, tear writes and fail
// any call; and the one way in which a file of ours is replaced: all of it, or not at all.
//
// Paths are the user's own words, as open(2) takes them. Names that come out of a model go through
// external_data.h.
#ifndef CAESURA_CORE_FILES_FILE_SYSTEM_H_
#define CAESURA_CORE_FILES_FILE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace caesura {

// A file being written from its beginning. Dropping it closes it; only Close() says whether that
// went well.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual Status Write(std::string_view bytes) = 0;
  // Bytes written so far survive a crash of the machine. The file's name is another matter:
  // SyncFolder.
  virtual Status Sync() = 0;
  virtual Status Close() = 0;
};

// An open file, for reading. Thread safety: all methods from any thread.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual uint64_t size() const = 0;
  // Fails unless all of [offset, offset + length) is there.
  virtual Status Read(uint64_t offset, size_t length, void* out) const = 0;
};

// Every failure is kIoError, or kNotFound where a file or folder is not there; messages name the
// path. Thread safety: all methods from any thread.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // An empty file at `path`, replacing what was there. Fails when another process or thread is
  // writing it.
  virtual Result<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  // Regular files only.
  virtual Result<std::unique_ptr<ReadableFile>> Open(const std::string& path) = 0;
  // Atomic: at any time `to` is the old file or the new one. SyncFolder makes it last.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  virtual Status Remove(const std::string& path) = 0;
  virtual Status SyncFolder(const std::string& folder) = 0;
  virtual Result<bool> Exists(const std::string& path) = 0;
  // Names in the folder, sorted, without "." and "..".
  virtual Result<std::vector<std::string>> List(const std::string& folder) = 0;
};

// The operating system's files. Never destroyed.
FileSystem& PosixFileSystem();

// Writes what `write` writes to `path`, so that whoever reads it, also after a crash at any moment,
// finds the old file or the new one, whole: into `path`.tmp, synced, renamed, and the folder
// synced. When it returns ok the new one lasts. A failure leaves the old one, or (when only the
// last step failed) perhaps the new one.
Status WriteFileAtomically(FileSystem& files, const std::string& path,
                           const std::function<Status(WritableFile&)>& write);

// The bytes of a file; fails when there are more than `max_bytes`.
Result<std::string> ReadWholeFile(FileSystem& files, const std::string& path, size_t max_bytes);

// "a/b" of "a/b/c"; "." of "c"; "/" of "/c".
std::string FolderOf(const std::string& path);

}  // namespace caesura

#endif  // CAESURA_CORE_FILES_FILE_SYSTEM_H_
