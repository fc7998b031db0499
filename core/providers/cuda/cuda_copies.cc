// SPDX-License-Identifier: Apache-2.0
#include "core/providers/cuda/cuda_copies.h"

#include <string>

#include "core/cuda/cuda_source.h"
#include "core/kernels/cuda/tensor_table.h"

namespace caesura {
namespace {

struct CopyWord {
  int64_t bytes;
  const char* type;
};
// Widest first: most tensors are copied by the first one.
constexpr CopyWord kCopyWords[] = {{16, "uint4"}, {4, "unsigned"}, {1, "unsigned char"}};

const CopyWord& WidestWord(const DeviceCopy& copy) {
  const uintptr_t all =
      reinterpret_cast<uintptr_t>(copy.to) | reinterpret_cast<uintptr_t>(copy.from) | copy.bytes;
  const CopyWord* word = kCopyWords;
  while (all % static_cast<uintptr_t>(word->bytes) != 0) ++word;
  return *word;
}

}  // namespace

Status CopyAllOnCuda(const CudaDevicePtr& device, const std::vector<DeviceCopy>& copies) {
  for (const CopyWord& word : kCopyWords) {
    std::vector<const DeviceCopy*> fitting;
    std::vector<int64_t> words;
    for (const DeviceCopy& copy : copies) {
      if (&WidestWord(copy) != &word) continue;
      fitting.push_back(&copy);
      words.push_back(static_cast<int64_t>(copy.bytes) / word.bytes);
    }
    const std::string source = CudaTensorTable::Macros(2) + CudaMacros({{"WORD_TYPE", word.type}}) +
                               CudaInclude("core/providers/cuda/copy_all.cuh");
    for (const CudaTensorTable& table : CudaTensorTable::Make(words, 2)) {
      ASSIGN_OR_RETURN(const CudaKernel kernel,
                       CudaKernel::Make(device, source, "copy_all", table.Grid(*device)));
      CudaTensorTable::Words addresses = table.Argument(
          [&](int i, int k) -> const void* { return k == 0 ? fitting[i]->from : fitting[i]->to; });
      void* arguments[] = {addresses.data()};
      RETURN_IF_ERROR(kernel.LaunchWith(arguments));
    }
  }
  return {};
}

}  // namespace caesura
