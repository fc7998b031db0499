// SPDX-License-Identifier: Apache-2.0
#include "core/base/disk_cache.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "core/base/env.h"

namespace caesura {
namespace {

bool IsOurs(const std::string& name) {
  return name.starts_with(".part-") ||
         (name.size() == 64 && name.find_first_not_of("0123456789abcdef") == std::string::npos);
}

}  // namespace

std::vector<CacheFile> CacheFiles() {
  std::vector<CacheFile> out;
  std::error_code error;
  std::filesystem::directory_iterator file(env::ProgramCache(), error), end;
  for (; !error && file != end; file.increment(error)) {
    struct stat status = {};
    const std::string name = file->path().filename();
    if (!IsOurs(name) || lstat(file->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode))
      continue;
    out.push_back({file->path(), name, static_cast<uint64_t>(status.st_size), status.st_mtime});
  }
  std::sort(out.begin(), out.end(),
            [](const CacheFile& a, const CacheFile& b) { return a.used > b.used; });
  return out;
}

bool IsKernelFile(const CacheFile& file) {
  char head[sizeof(kKernelFileHead) - 1] = {};
  std::ifstream stream(file.path, std::ios::binary);
  return stream.read(head, sizeof(head)) && std::string(head, sizeof(head)) == kKernelFileHead;
}

void ShrinkCache() {
  const uint64_t limit = static_cast<uint64_t>(env::ProgramCacheMegabytes()) << 20;
  uint64_t total = 0;
  for (const CacheFile& file : CacheFiles()) {
    total += file.bytes;
    if (total > limit && std::remove(file.path.c_str()) == 0) total -= file.bytes;
  }
}

}  // namespace caesura
