// SPDX-License-Identifier: Apache-2.0
#include "core/cuda/cuda_libraries.h"

#include <dlfcn.h>

#include <filesystem>
#include <initializer_list>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

// The first that opens, copies that the process has loaded already before all others.
Result<void*> Open(const std::string& given, std::initializer_list<const char*> usual,
                   const std::string& help) {
  if (!given.empty()) {
    if (void* library = dlopen(given.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    return Unsupported("the CUDA provider cannot open '" + given + "': " + dlerror());
  }
  for (const int mode : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL}) {
    for (const char* name : usual) {
      if (void* library = dlopen(name, mode)) return library;
    }
  }
  return Unsupported("the CUDA provider finds no " + std::string(*usual.begin()) + ": " + help);
}

Result<void*> Symbol(void* library, const char* name) {
  if (void* found = dlsym(library, name)) return found;
  return Unsupported("the CUDA provider opened a library that has no " + std::string(name) +
                     ": it is older than caesura needs");
}

template <typename Function>
Status Take(Result<void*> found, Function*& into) {
  if (!found.ok()) return found.status();
  into = reinterpret_cast<Function*>(*found);
  return {};
}

Status OpenDriver(const CudaLibraryNames& names, CudaLibraries& out) {
  ASSIGN_OR_RETURN(void* library, Open(names.driver, {"libcuda.so.1"},
                                       "no NVIDIA driver is installed on this machine"));
  decltype(&::cuGetProcAddress) find = nullptr;
  RETURN_IF_ERROR(Take(Symbol(library, "cuGetProcAddress_v2"), find));
  auto find_symbol = [&](const char* name) -> Result<void*> {
    void* found = nullptr;
    CUdriverProcAddressQueryResult answer;
    const CUresult result = find(name, &found, CUDA_VERSION, CU_GET_PROC_ADDRESS_DEFAULT, &answer);
    if (result == CUDA_SUCCESS && found != nullptr) return found;
    return Unsupported("the NVIDIA driver has no " + std::string(name) + " of CUDA " +
                       std::to_string(CUDA_VERSION / 1000) + "." +
                       std::to_string(CUDA_VERSION % 1000 / 10) + ": it is older than that");
  };
#define CAESURA_TAKE(name) RETURN_IF_ERROR(Take(find_symbol(#name), out.driver.name));
  CAESURA_CUDA_DRIVER_FUNCTIONS(CAESURA_TAKE)
#undef CAESURA_TAKE
  return {};
}

// NVRTC opens this part of itself by name only when it compiles: outside of the system's folders it
// finds it if it is open already.
void OpenBuiltins(void* function) {
  Dl_info info = {};
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(info.dli_fname).parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().filename().string().rfind("libnvrtc-builtins.so", 0) == 0)
      dlopen(entry.path().c_str(), RTLD_NOW | RTLD_GLOBAL);
  }
}

Status OpenNvrtc(const CudaLibraryNames& names, CudaLibraries& out) {
  ASSIGN_OR_RETURN(void* library, Open(names.nvrtc, {"libnvrtc.so.13", "libnvrtc.so.12"},
                                       "pip install caesura-train[cuda] brings it"));
#define CAESURA_TAKE(name) RETURN_IF_ERROR(Take(Symbol(library, #name), out.nvrtc.name));
  CAESURA_NVRTC_FUNCTIONS(CAESURA_TAKE)
#undef CAESURA_TAKE
  OpenBuiltins(reinterpret_cast<void*>(out.nvrtc.nvrtcVersion));
  return {};
}

Status OpenCublasLt(const CudaLibraryNames& names, CudaLibraries& out) {
  ASSIGN_OR_RETURN(void* library, Open(names.cublas_lt, {"libcublasLt.so.13", "libcublasLt.so.12"},
                                       "pip install caesura-train[cuda] brings it"));
#define CAESURA_TAKE(name, arguments) \
  RETURN_IF_ERROR(Take(Symbol(library, "cublasLt" #name), out.cublas_lt.name));
  CAESURA_CUBLAS_LT_FUNCTIONS(CAESURA_TAKE)
#undef CAESURA_TAKE
  return {};
}

Result<cudnn::Functions> CudnnOf(void* library) {
  constexpr size_t kOldest = 91600;
  size_t (*version)() = nullptr;
  RETURN_IF_ERROR(Take(Symbol(library, "cudnnGetVersion"), version));
  if (version() < kOldest) {
    return Unsupported("cuDNN 9.16 or newer expected, got version number " +
                       std::to_string(version()));
  }
  cudnn::Functions out;
#define CAESURA_TAKE(name, arguments) \
  RETURN_IF_ERROR(Take(Symbol(library, "cudnn" #name), out.name));
  CAESURA_CUDNN_FUNCTIONS(CAESURA_TAKE)
#undef CAESURA_TAKE
  return out;
}

}  // namespace

Result<NcclFunctions> OpenNccl(const CudaLibraryNames& names) {
  ASSIGN_OR_RETURN(void* library,
                   Open(names.nccl, {"libnccl.so.2"}, "pip install caesura-train[cuda] brings it"));
  NcclFunctions out;
#define CAESURA_TAKE(name, arguments) \
  RETURN_IF_ERROR(Take(Symbol(library, "nccl" #name), out.name));
  CAESURA_NCCL_FUNCTIONS(CAESURA_TAKE)
#undef CAESURA_TAKE
  RETURN_IF_ERROR(Take(Symbol(library, "ncclGetErrorString"), out.GetErrorString));
  RETURN_IF_ERROR(Take(Symbol(library, "ncclGetLastError"), out.GetLastError));
  return out;
}

Result<cudnn::Functions> OpenCudnn(const std::string& name) {
  ASSIGN_OR_RETURN(void* library,
                   Open(name, {"libcudnn.so.9"}, "pip install caesura-train[cuda] brings it"));
  return CudnnOf(library);
}

Result<std::shared_ptr<const CudaLibraries>> OpenCudaLibraries(const CudaLibraryNames& names) {
  auto out = std::make_shared<CudaLibraries>();
  RETURN_IF_ERROR(OpenDriver(names, *out));
  RETURN_IF_ERROR(OpenNvrtc(names, *out));
  RETURN_IF_ERROR(OpenCublasLt(names, *out));
  // After cuBLASLt, which it looks for among the libraries that are open.
  const Result<void*> cudnn = Open(names.cudnn, {"libcudnn.so.9"}, "it is not installed");
  if (!cudnn.ok() && !names.cudnn.empty()) return cudnn.status();
  const Result<cudnn::Functions> calls =
      cudnn.ok() ? CudnnOf(*cudnn) : Result<cudnn::Functions>(cudnn.status());
  if (calls.ok()) out->cudnn = *calls;
  else out->why_no_cudnn = calls.status().message();
  return std::shared_ptr<const CudaLibraries>(std::move(out));
}

}  // namespace caesura
