// SPDX-License-Identifier: Apache-2.0
// Compiled kernels on disk, for other devices and later processes: files of the program cache
// (core/base/disk_cache.h). CAESURA_PROGRAM_CACHE names the folder, "off" keeps nothing.
//
// A kernel's key is a text that holds all that its code follows from. A file is not trusted: it
// must have the checksum of its content and the whole key, and it has a limited size.
//
// Thread safety: from any thread, and from any number of processes.
#ifndef CAESURA_CORE_CUDA_KERNEL_CACHE_H_
#define CAESURA_CORE_CUDA_KERNEL_CACHE_H_

#include <optional>
#include <string>

namespace caesura {

// More bytes than this are neither read nor written.
inline constexpr size_t kLargestKernelFile = size_t{64} << 20;

// The file of the kernel with this key; empty where nothing is kept.
std::string KernelFile(const std::string& key);

// The kernel's code, or nothing where it was not kept. A damaged file counts as none, with a
// warning.
std::optional<std::string> LoadKernel(const std::string& key);

// Keeps the code, in place of what the key had. Other processes see all of it or nothing. A folder
// that cannot be written to is reported once, and keeps nothing.
void StoreKernel(const std::string& key, const std::string& code);

}  // namespace caesura

#endif  // CAESURA_CORE_CUDA_KERNEL_CACHE_H_
