// SPDX-License-Identifier: Apache-2.0
// The folder that env::ProgramCache names. It holds captured programs, which Python writes, and
// compiled kernels (core/cuda/kernel_cache.h): one file each, whose name is 64 hexadecimal digits.
// Any number of processes share it.
#ifndef CAESURA_CORE_BASE_DISK_CACHE_H_
#define CAESURA_CORE_BASE_DISK_CACHE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace caesura {

// The first bytes of a kernel's file.
inline constexpr char kKernelFileHead[] = "caesura kernel 1\n";

struct CacheFile {
  std::string path, name;
  uint64_t bytes = 0;
  int64_t used = 0;  // seconds since 1970
};

// The cache's files, used last first; nothing where there is no cache. They are those with such
// names, and those that a crash left half written (".part-..."). Links are not followed.
std::vector<CacheFile> CacheFiles();

// True if the file begins as a kernel's does.
bool IsKernelFile(const CacheFile& file);

// Removes files, the least recently used first, while they are larger together than
// env::ProgramCacheMegabytes allows.
void ShrinkCache();

}  // namespace caesura

#endif  // CAESURA_CORE_BASE_DISK_CACHE_H_
