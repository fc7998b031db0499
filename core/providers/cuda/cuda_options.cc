// SPDX-License-Identifier: Apache-2.0
#include <charconv>

#include "core/base/status_macros.h"
#include "core/providers/cuda/cuda_provider.h"

namespace caesura {
namespace {

template <typename T>
Status ReadNumber(const std::string& name, const std::string& text, T* out) {
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, *out);
  if (error == std::errc() && last == end) return {};
  return InvalidArgument("CUDAExecutionProvider: option '" + name + "': expected a number, got '" +
                         text + "'");
}

}  // namespace

Result<CudaOptions> ParseCudaOptions(const std::map<std::string, std::string>& options) {
  CudaOptions out;
  for (const auto& [name, value] : options) {
    if (name == "device_id") {
      RETURN_IF_ERROR(ReadNumber(name, value, &out.device_id));
    } else if (name == "gpu_mem_limit") {
      RETURN_IF_ERROR(ReadNumber(name, value, &out.memory_limit));
    } else if (name == "use_tf32") {
      if (value != "0" && value != "1") {
        return InvalidArgument("CUDAExecutionProvider: option 'use_tf32': expected 0 or 1, got '" +
                               value + "'");
      }
      out.tf32 = value == "1";
    } else if (name == "user_compute_stream") {
      uintptr_t address = 0;
      RETURN_IF_ERROR(ReadNumber(name, value, &address));
      out.stream = reinterpret_cast<void*>(address);
    } else if (name == "driver_library") {
      out.libraries.driver = value;
    } else if (name == "nvrtc_library") {
      out.libraries.nvrtc = value;
    } else if (name == "cublas_lt_library") {
      out.libraries.cublas_lt = value;
    } else if (name == "cudnn_library") {
      out.libraries.cudnn = value;
    } else if (name == "nccl_library") {
      out.libraries.nccl = value;
    } else {
      return InvalidArgument("CUDAExecutionProvider has no option '" + name +
                             "'; it has device_id, gpu_mem_limit, use_tf32, user_compute_stream, "
                             "driver_library, nvrtc_library, cublas_lt_library, cudnn_library and "
                             "nccl_library");
    }
  }
  return out;
}

}  // namespace caesura
