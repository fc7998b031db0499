// SPDX-License-Identifier: Apache-2.0
#include "core/files/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <optional>

#include "core/base/status_macros.h"
#include "core/files/external_data.h"

namespace caesura {
namespace {

// The status of a call on `path` that has just failed.
Status Failed(const std::string& path, const char* what) {
  const int error = errno;
  std::string message = "'" + path + "' cannot be " + what + ": " + std::strerror(error);
  return error == ENOENT ? NotFound(std::move(message)) : IoError(std::move(message));
}

class PosixWritableFile : public WritableFile {
 public:
  explicit PosixWritableFile(std::string path) : path_(std::move(path)) {}
  ~PosixWritableFile() override {
    if (fd_ >= 0) ::close(fd_);
  }

  // The descriptor of a file that is new or keeps its bytes; -1 when there is none.
  int Open() {
    return fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  }

  Status Write(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t put = ::write(fd_, bytes.data(), bytes.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return Failed(path_, "written");
      bytes.remove_prefix(static_cast<size_t>(put));
    }
    return {};
  }
  Status Sync() override { return ::fsync(fd_) == 0 ? Status() : Failed(path_, "synced"); }
  Status Close() override {
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd) == 0 ? Status() : Failed(path_, "closed");
  }

 private:
  std::string path_;
  int fd_ = -1;
};

class PosixReadableFile : public ReadableFile {
 public:
  explicit PosixReadableFile(std::string path) : path_(std::move(path)) {}
  Status Open() {
    // O_NONBLOCK: a pipe must not hold us up before it is refused.
    const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return Failed(path_, "opened");
    handle_.emplace(fd);
    struct stat facts = {};
    if (::fstat(fd, &facts) != 0) return Failed(path_, "examined");
    if (!S_ISREG(facts.st_mode)) return IoError("'" + path_ + "' is no regular file");
    size_ = static_cast<uint64_t>(facts.st_size);
    return {};
  }
  uint64_t size() const override { return size_; }

  Status Read(uint64_t offset, size_t length, void* out) const override {
    if (offset > size_ || length > size_ - offset) {
      return IoError("'" + path_ + "' has " + std::to_string(size_) + " bytes, but " +
                     std::to_string(length) + " from " + std::to_string(offset) +
                     " on are asked for");
    }
    char* at = static_cast<char*>(out);
    while (length > 0) {
      const ssize_t got = ::pread(handle_->fd(), at, length, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Failed(path_, "read");
      if (got == 0) return IoError("'" + path_ + "' has become shorter while it was read");
      at += got;
      offset += static_cast<uint64_t>(got);
      length -= static_cast<size_t>(got);
    }
    return {};
  }

 private:
  std::string path_;
  std::optional<FileHandle> handle_;
  uint64_t size_ = 0;
};

bool IsSameFile(int fd, const std::string& path) {
  struct stat by_fd = {}, by_path = {};
  return ::fstat(fd, &by_fd) == 0 && ::stat(path.c_str(), &by_path) == 0 &&
         by_fd.st_dev == by_path.st_dev && by_fd.st_ino == by_path.st_ino;
}

class Posix : public FileSystem {
 public:
  Result<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    while (true) {
      auto file = std::make_unique<PosixWritableFile>(path);  // first: no memory, no file is left
      const int fd = file->Open();
      if (fd < 0) return Failed(path, "created");
      if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) return IoError("'" + path + "' is being written by someone else");
        return Failed(path, "locked");
      }
      // Whoever held the lock before may have renamed the file that is open here: it is not ours to
      // change then.
      if (!IsSameFile(fd, path)) continue;
      if (::ftruncate(fd, 0) != 0) return Failed(path, "emptied");
      return std::unique_ptr<WritableFile>(std::move(file));
    }
  }

  Result<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    auto file = std::make_unique<PosixReadableFile>(path);
    RETURN_IF_ERROR(file->Open());
    return std::unique_ptr<ReadableFile>(std::move(file));
  }

  Status Rename(const std::string& from, const std::string& to) override {
    return ::rename(from.c_str(), to.c_str()) == 0
               ? Status()
               : Failed(from, ("renamed to '" + to + "'").c_str());
  }
  Status Remove(const std::string& path) override {
    return ::unlink(path.c_str()) == 0 ? Status() : Failed(path, "removed");
  }

  Status SyncFolder(const std::string& folder) override {
    const FileHandle handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (handle.fd() < 0) return Failed(folder, "opened");
    return ::fsync(handle.fd()) == 0 ? Status() : Failed(folder, "synced");
  }

  Result<bool> Exists(const std::string& path) override {
    struct stat facts = {};
    if (::stat(path.c_str(), &facts) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return Failed(path, "examined");
  }

  Result<std::vector<std::string>> List(const std::string& folder) override {
    DIR* open = ::opendir(folder.c_str());
    if (open == nullptr) return Failed(folder, "listed");
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(open)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    Status status = errno == 0 ? Status() : Failed(folder, "listed");
    ::closedir(open);
    if (!status.ok()) return status;
    std::sort(names.begin(), names.end());
    return names;
  }
};

// The target of `path` where it is a symbolic link, or a chain of them: the file that others see
// under it, there or not yet.
Result<std::string> BehindLinks(std::string path) {
  constexpr int kMostLinks = 40;  // as open(2) follows
  for (int i = 0; i < kMostLinks; ++i) {
    char target[PATH_MAX];
    const ssize_t length = ::readlink(path.c_str(), target, sizeof(target));
    if (length < 0) return path;  // no link; what else is wrong with it shows when it is written
    if (length == static_cast<ssize_t>(sizeof(target))) break;
    const std::string next(target, static_cast<size_t>(length));
    path = next[0] == '/' ? next : FolderOf(path) + "/" + next;
  }
  return IoError("'" + path + "' cannot be written: too many symbolic links");
}

}  // namespace

FileSystem& PosixFileSystem() {
  static Posix* const files = new Posix;
  return *files;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// A symbolic link at `given` stays: the file that it leads to is replaced.
Status WriteFileAtomically(FileSystem& files, const std::string& given,
                           const std::function<Status(WritableFile&)>& write) {
  ASSIGN_OR_RETURN(const std::string path, BehindLinks(given));
  const std::string temporary = path + ".tmp";
  Result<std::unique_ptr<WritableFile>> created = files.Create(temporary);
  if (!created.ok()) return created.status();
  // Renamed before it is closed: until then the lock keeps other writers away from the temporary
  // name.
  Status status;
  try {
    status = write(**created);
    if (status.ok()) status = (*created)->Sync();
    if (status.ok()) status = files.Rename(temporary, path);
  } catch (const std::bad_alloc&) {
    status = OutOfMemory("memory ran out while '" + path + "' was written");
  }
  if (!status.ok()) {
    static_cast<void>(files.Remove(temporary));  // the first failure is the one to tell
    return status;
  }
  RETURN_IF_ERROR(files.SyncFolder(FolderOf(path)));
  return (*created)->Close();
}

Result<std::string> ReadWholeFile(FileSystem& files, const std::string& path, size_t max_bytes) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, files.Open(path));
  if (file->size() > max_bytes) {
    return IoError("'" + path + "' has " + std::to_string(file->size()) + " bytes, more than the " +
                   std::to_string(max_bytes) + " allowed");
  }
  std::string bytes(static_cast<size_t>(file->size()), '\0');
  RETURN_IF_ERROR(file->Read(0, bytes.size(), bytes.data()));
  return bytes;
}

}  // namespace caesura
