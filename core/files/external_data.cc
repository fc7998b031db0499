// SPDX-License-Identifier: Apache-2.0
#include "core/files/external_data.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

std::string Reason() { return std::strerror(errno); }

Status Refused(const std::string& location, const std::string& why) {
  return InvalidModel("external data '" + location + "': " + why);
}

// The fault of a location where an open has failed with `error`.
Status OpenFailure(const std::string& location, int error) {
  switch (error) {
    case ELOOP: return Refused(location, "goes through a symbolic link that is not followed");
    case EXDEV:
      return Refused(location, "leads out of the model's folder, by itself or by a symbolic link");
    case ENOENT: return NotFound("external data '" + location + "' is not there");
    case ENOTDIR: return Refused(location, "is no file, or goes through a file or a link");
    default:
      return IoError("external data '" + location + "' cannot be opened: " + std::strerror(error));
  }
}

}  // namespace

FileHandle::~FileHandle() {
  if (fd_ >= 0) ::close(fd_);
}

Status ExternalFile::CheckRange(uint64_t offset, uint64_t length) const {
  if (offset <= size_ && length <= size_ - offset) return {};
  return Refused(location_, "has " + std::to_string(size_) + " bytes, but " +
                                std::to_string(length) + " from " + std::to_string(offset) +
                                " on are asked for");
}

Status ExternalFile::Read(uint64_t offset, uint64_t length, char* out) const {
  assert(CheckRange(offset, length).ok());
  while (length > 0) {
    const ssize_t got = ::pread(file_->fd(), out, length, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return IoError("external data '" + location_ + "' cannot be read: " + Reason());
    if (got == 0)
      return IoError("external data '" + location_ + "' has become shorter while it was read");
    out += got;
    offset += static_cast<uint64_t>(got);
    length -= static_cast<uint64_t>(got);
  }
  return {};
}

Status CheckLocation(const std::string& location) {
  if (location.empty()) return Refused(location, "has no location");
  if (location.find('\0') != std::string::npos)
    return Refused(location, "has a NUL in its location");
  if (location[0] == '/') return Refused(location, "is an absolute path");
  for (size_t begin = 0; begin <= location.size();) {
    const size_t end = std::min(location.find('/', begin), location.size());
    const std::string part = location.substr(begin, end - begin);
    if (part.empty() || part == "..")
      return Refused(location, "is no plain path below the model's folder");
    begin = end + 1;
  }
  return {};
}

Result<std::unique_ptr<ExternalFolder>> ExternalFolder::Open(const std::string& path,
                                                             const std::string& model_path) {
  auto open = [](const std::string& folder) {
    return std::make_unique<FileHandle>(
        ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  };
  std::unique_ptr<ExternalFolder> out(new ExternalFolder(open(path)));
  if (out->folder_->fd() < 0) return IoError("folder '" + path + "' cannot be opened: " + Reason());
  char real[PATH_MAX];
  if (!model_path.empty() && ::realpath(model_path.c_str(), real) != nullptr) {
    const std::string real_path = real;
    out->beside_ = open(real_path.substr(0, std::max<size_t>(1, real_path.rfind('/'))));
  }
  return out;
}

int ExternalFolder::OpenBeside(const std::string& location, int flags) const {
  if (beside_ == nullptr || beside_->fd() < 0) return -1;
  const size_t slash = location.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : location.substr(0, slash);
  const std::string name = slash == std::string::npos ? location : location.substr(slash + 1);
  const FileHandle parent(OpenComponents(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  char target[PATH_MAX];
  const ssize_t length =
      parent.fd() < 0 ? -1 : ::readlinkat(parent.fd(), name.c_str(), target, sizeof(target));
  if (length <= 0 || length == static_cast<ssize_t>(sizeof(target)) || target[0] == '/') return -1;
  std::string last(target, static_cast<size_t>(length));
  last.erase(0, last.rfind('/') + 1);  // all of it where there is no slash
  if (last.empty() || last == "." || last == "..") return -1;
  const int file = ::openat(beside_->fd(), last.c_str(), flags | O_NOFOLLOW);
  struct stat opened = {}, linked = {};
  const bool same = file >= 0 && ::fstat(file, &opened) == 0 &&
                    ::fstatat(parent.fd(), name.c_str(), &linked, 0) == 0 &&
                    opened.st_dev == linked.st_dev && opened.st_ino == linked.st_ino;
  if (file >= 0 && !same) ::close(file);
  return same ? file : -1;
}

int ExternalFolder::OpenComponents(const std::string& location, int flags) const {
  // Every component is opened from the one before it, never following a link; ".." was refused
  // before.
  int folder = ::dup(folder_->fd());
  size_t begin = 0;
  while (folder >= 0) {
    const size_t end = location.find('/', begin);
    const bool is_last = end == std::string::npos;
    const std::string part = location.substr(begin, is_last ? end : end - begin);
    const int next =
        is_last ? ::openat(folder, part.c_str(), flags | O_NOFOLLOW)
                : ::openat(folder, part.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const int error = errno;
    ::close(folder);
    errno = error;
    if (is_last) return next;
    folder = next;
    begin = end + 1;
  }
  return -1;
}

Result<int> ExternalFolder::OpenBeneath(const std::string& location, int flags) {
  RETURN_IF_ERROR(CheckLocation(location));
  flags |= O_CLOEXEC | O_NONBLOCK;  // O_NONBLOCK: a pipe must not hold us up before it is refused
  int fd = -1;
  if (has_openat2_) {
    open_how how = {};
    how.flags = static_cast<uint64_t>(flags);
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
    fd = static_cast<int>(
        ::syscall(SYS_openat2, folder_->fd(), location.c_str(), &how, sizeof(how)));
    // Old kernels lack the call; sandboxes deny it.
    if (fd < 0 && (errno == ENOSYS || errno == EPERM)) has_openat2_ = false;
  }
  if (!has_openat2_) fd = OpenComponents(location, flags);
  if (fd >= 0) return fd;
  const int error = errno;
  fd = OpenBeside(location, flags);
  if (fd < 0) return OpenFailure(location, error);
  return fd;
}

Result<const ExternalFile*> ExternalFolder::OpenForReading(const std::string& location) {
  if (open_file_ != nullptr && open_location_ == location) return open_file_.get();
  ASSIGN_OR_RETURN(const int fd, OpenBeneath(location, O_RDONLY));
  auto file = std::make_unique<FileHandle>(fd);
  struct stat facts = {};
  if (::fstat(fd, &facts) != 0) return IoError("external data '" + location + "': " + Reason());
  if (!S_ISREG(facts.st_mode)) return Refused(location, "is no regular file");
  if (facts.st_nlink != 1)
    return Refused(location, "has " + std::to_string(facts.st_nlink) + " hard links");
  open_file_ = std::make_unique<ExternalFile>(location, std::move(file),
                                              static_cast<uint64_t>(facts.st_size));
  open_location_ = location;
  return open_file_.get();
}

}  // namespace caesura
