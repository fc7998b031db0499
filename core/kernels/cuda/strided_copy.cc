// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cuda/strided_copy.h"

#include <cassert>

#include "core/cuda/cuda_source.h"
#include "core/kernels/cuda/strided_walk.h"

namespace caesura {

const char* CudaWord(size_t bytes) {
  switch (bytes) {
    case 1: return "unsigned char";
    case 2: return "unsigned short";
    case 4: return "unsigned";
    case 8: return "u64";
    default: return nullptr;
  }
}

Result<CudaStridedCopy> CudaStridedCopy::Make(const KernelInfo& info, const CudaDevicePtr& device,
                                              size_t bytes, const StridedBox& box) {
  const char* word = CudaWord(bytes);
  if (word == nullptr) return info.Refuse("elements of so many bytes are not moved on CUDA");
  CudaStridedCopy out;
  const StridedWalk walk = StridedWalk::Make(box.extents, {box.src_strides, box.dst_strides});
  out.elements_ = walk.elements;
  out.walk_ = walk.Numbers();
  out.from_ = box.src_offset * static_cast<int64_t>(bytes);
  out.to_ = box.dst_offset * static_cast<int64_t>(bytes);
  if (out.elements_ == 0) return out;
  if (!walk.Repeats(0) && !walk.Repeats(1)) {
    out.vector_ = 16 / static_cast<int64_t>(bytes);
    while (out.vector_ > 1 && !walk.HasVectors(out.vector_)) out.vector_ /= 2;
  }
  out.alignment_ = bytes * static_cast<size_t>(out.vector_);
  const std::string width = std::to_string(out.vector_);
  const std::string source = CudaMacros({{"WORD_TYPE", word},
                                         {"VECTOR", width},
                                         {"WALK_NUMBERS", std::to_string(out.walk_.size())},
                                         {"VECTOR_OFFSETS", walk.Offsets("i * " + width)},
                                         {"OFFSETS", walk.Offsets()}}) +
                             CudaInclude("core/kernels/cuda/strided_copy.cuh");
  const int64_t steps = (walk.elements + out.vector_ - 1) / out.vector_;
  ASSIGN_OR_RETURN(out.kernel_,
                   CudaKernel::Make(device, source, "strided_copy", GridOver(*device, steps)));
  return out;
}

Status CudaStridedCopy::Run(const void* from, void* to) const {
  if (elements_ == 0) return {};
  assert(static_cast<const char*>(from) + from_ != static_cast<const char*>(to) + to_);
  CudaArguments arguments;
  int64_t vectors = vector_ > 1 ? elements_ / vector_ : 0;
  for (const char* pointer :
       {static_cast<const char*>(from) + from_, static_cast<const char*>(to) + to_}) {
    if (reinterpret_cast<uintptr_t>(pointer) % alignment_ != 0) vectors = 0;
    arguments.AddPointer(pointer);
  }
  arguments.Add(&elements_);
  arguments.Add(&vectors);
  arguments.Add(walk_.data());
  return kernel_->LaunchWith(arguments.addresses());
}

}  // namespace caesura
