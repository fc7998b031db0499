// SPDX-License-Identifier: Apache-2.0
#include "core/cuda/kernel_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/base/disk_cache.h"
#include "core/base/env.h"
#include "core/base/log.h"

namespace caesura {
namespace {

// A file is the head, the checksum of all that follows, the key's length, the key, and the code.
constexpr size_t kHead = sizeof(kKernelFileHead) - 1, kNumber = sizeof(uint64_t);
constexpr size_t kBody = kHead + kNumber;

std::string Number(uint64_t number) {
  return std::string(reinterpret_cast<const char*>(&number), kNumber);
}

uint64_t NumberAt(const std::string& content, size_t at) {
  uint64_t number = 0;
  std::memcpy(&number, content.data() + at, kNumber);
  return number;
}

uint64_t Checksum(const std::string& content, size_t begin) {
  return crc32_z(0, reinterpret_cast<const Bytef*>(content.data()) + begin, content.size() - begin);
}

// FNV-1a. Names need not be unique: the key in the file is compared.
uint64_t Hash(const std::string& text, uint64_t start) {
  uint64_t hash = 14695981039346656037ull ^ start;
  for (unsigned char c : text) hash = (hash ^ c) * 1099511628211ull;
  return hash;
}

// Why the content is no kernel of this key; empty if it is one.
std::string WhyNot(const std::string& content, const std::string& key) {
  if (content.size() < kBody + kNumber || !content.starts_with(kKernelFileHead))
    return "it is no kernel";
  if (NumberAt(content, kHead) != Checksum(content, kBody)) return "its checksum is another one";
  if (NumberAt(content, kBody) != key.size() || content.compare(kBody + kNumber, key.size(), key))
    return "it is another kernel";
  if (content.size() == kBody + kNumber + key.size()) return "it has no code";
  return {};
}

// A regular file's bytes; nothing where there is none. It counts as used now.
std::optional<std::string> Read(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return {};
  struct stat status = {};
  std::optional<std::string> content;
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
      static_cast<uint64_t>(status.st_size) <= kLargestKernelFile) {
    content.emplace(status.st_size, '\0');
    size_t done = 0;
    while (done < content->size()) {
      const ssize_t got = read(file, content->data() + done, content->size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      done += static_cast<size_t>(got);
    }
    content->resize(done);
    futimens(file, nullptr);
  }
  close(file);
  return content;
}

bool WriteAll(int file, const std::string& content) {
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t put = write(file, content.data() + done, content.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    done += static_cast<size_t>(put);
  }
  return true;
}

// False, with errno, where the file cannot be written.
bool Replace(const std::string& path, const std::string& content) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;  // mkdir or mkstemp tells
  std::filesystem::create_directories(folder.parent_path(), ignored);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return false;
  std::string part = (folder / ".part-XXXXXX").string();
  const int file = mkstemp(part.data());
  if (file < 0) return false;
  bool written = WriteAll(file, content);
  written = close(file) == 0 && written;
  if (written && std::rename(part.c_str(), path.c_str()) == 0) return true;
  const int why = errno;
  std::remove(part.c_str());
  errno = why;
  return false;
}

}  // namespace

std::string KernelFile(const std::string& key) {
  const std::string folder = env::ProgramCache();
  if (folder.empty()) return {};
  std::string name;
  for (uint64_t start = 0; start < 4; ++start) {
    char digits[17];
    std::snprintf(digits, sizeof(digits), "%016" PRIx64, Hash(key, start));
    name += digits;
  }
  return folder + "/" + name;
}

std::optional<std::string> LoadKernel(const std::string& key) {
  const std::string path = KernelFile(key);
  if (path.empty()) return {};
  std::optional<std::string> content = Read(path);
  if (!content) return {};
  const std::string why = WhyNot(*content, key);
  if (why.empty()) return content->substr(kBody + kNumber + key.size());
  LogWarning("the kept kernel " + path + " is damaged and not used: " + why);
  return {};
}

void StoreKernel(const std::string& key, const std::string& code) {
  const std::string path = KernelFile(key);
  const std::string body = Number(key.size()) + key + code;
  if (path.empty() || kBody + body.size() > kLargestKernelFile) return;
  if (Replace(path, kKernelFileHead + Number(Checksum(body, 0)) + body)) {
    ShrinkCache();
    return;
  }
  LogLost("the cache of CUDA kernels",
          path + ": " + std::strerror(errno) + ". Each process compiles its kernels anew. Let " +
              "CAESURA_PROGRAM_CACHE name a folder that can be written to, or be 'off'");
}

}  // namespace caesura
