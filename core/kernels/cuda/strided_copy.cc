// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cuda/strided_copy.h"

#include "core/kernels/cuda/strided_walk.h"

namespace caesura {
namespace {

// An unsigned type of as many bytes as the element has.
const char* WordOf(size_t bytes) {
  switch (bytes) {
    case 1: return "unsigned char";
    case 2: return "unsigned short";
    case 4: return "unsigned";
    case 8: return "u64";
    default: return nullptr;
  }
}

}  // namespace

Result<CudaStridedCopy> CudaStridedCopy::Make(const KernelInfo& info, const CudaDevicePtr& device,
                                              size_t bytes, const StridedBox& box) {
  const char* word = WordOf(bytes);
  if (word == nullptr) return info.Refuse("elements of so many bytes are not moved on CUDA");
  CudaStridedCopy out;
  const StridedWalk walk = StridedWalk::Make(box.extents, {box.src_strides, box.dst_strides});
  out.elements_ = walk.elements;
  out.walk_ = walk.Numbers();
  out.from_ = box.src_offset * static_cast<int64_t>(bytes);
  out.to_ = box.dst_offset * static_cast<int64_t>(bytes);
  if (out.elements_ == 0) return out;
  const std::string source = walk.Struct() + "extern \"C\" __global__ void strided_copy(const " +
                             word + "* from, " + word +
                             "* to, i64 n, Walk walk) {\n"
                             "for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n;"
                             " i += (i64)gridDim.x * blockDim.x) {\n" +
                             walk.Offsets() + "to[offset1] = from[offset0];\n}\n}\n";
  ASSIGN_OR_RETURN(out.kernel_, CudaKernel::Make(device, source, "strided_copy",
                                                 GridOver(*device, walk.elements)));
  return out;
}

Status CudaStridedCopy::Run(const void* from, void* to) const {
  if (elements_ == 0) return {};
  CudaArguments arguments;
  arguments.AddPointer(static_cast<const char*>(from) + from_);
  arguments.AddPointer(static_cast<const char*>(to) + to_);
  arguments.Add(&elements_);
  arguments.Add(walk_.data());
  return kernel_->LaunchWith(arguments.addresses());
}

}  // namespace caesura
