// SPDX-License-Identifier: Apache-2.0
// cuda.h: initialization, devices, contexts, errors, addresses of functions.
#include <dlfcn.h>
#include <algorithm>
#include <cstring>
#include "driver/state.h"

using standin::Call;
using standin::Driver;

namespace {

struct ErrorName {
  CUresult code;
  const char* name;
};
#define NAME(CODE) {CODE, #CODE}
constexpr ErrorName kErrors[] = {
    NAME(CUDA_SUCCESS),
    NAME(CUDA_ERROR_INVALID_VALUE),
    NAME(CUDA_ERROR_OUT_OF_MEMORY),
    NAME(CUDA_ERROR_NOT_INITIALIZED),
    NAME(CUDA_ERROR_DEINITIALIZED),
    NAME(CUDA_ERROR_STUB_LIBRARY),
    NAME(CUDA_ERROR_NO_DEVICE),
    NAME(CUDA_ERROR_INVALID_DEVICE),
    NAME(CUDA_ERROR_INVALID_IMAGE),
    NAME(CUDA_ERROR_INVALID_CONTEXT),
    NAME(CUDA_ERROR_NO_BINARY_FOR_GPU),
    NAME(CUDA_ERROR_ECC_UNCORRECTABLE),
    NAME(CUDA_ERROR_UNSUPPORTED_LIMIT),
    NAME(CUDA_ERROR_INVALID_PTX),
    NAME(CUDA_ERROR_UNSUPPORTED_PTX_VERSION),
    NAME(CUDA_ERROR_FILE_NOT_FOUND),
    NAME(CUDA_ERROR_OPERATING_SYSTEM),
    NAME(CUDA_ERROR_INVALID_HANDLE),
    NAME(CUDA_ERROR_ILLEGAL_STATE),
    NAME(CUDA_ERROR_NOT_FOUND),
    NAME(CUDA_ERROR_NOT_READY),
    NAME(CUDA_ERROR_ILLEGAL_ADDRESS),
    NAME(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
    NAME(CUDA_ERROR_LAUNCH_TIMEOUT),
    NAME(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE),
    NAME(CUDA_ERROR_CONTEXT_IS_DESTROYED),
    NAME(CUDA_ERROR_ASSERT),
    NAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
    NAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
    NAME(CUDA_ERROR_HARDWARE_STACK_ERROR),
    NAME(CUDA_ERROR_ILLEGAL_INSTRUCTION),
    NAME(CUDA_ERROR_MISALIGNED_ADDRESS),
    NAME(CUDA_ERROR_INVALID_ADDRESS_SPACE),
    NAME(CUDA_ERROR_INVALID_PC),
    NAME(CUDA_ERROR_LAUNCH_FAILED),
    NAME(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE),
    NAME(CUDA_ERROR_NOT_PERMITTED),
    NAME(CUDA_ERROR_NOT_SUPPORTED),
    NAME(CUDA_ERROR_SYSTEM_NOT_READY),
    NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    NAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
    NAME(CUDA_ERROR_STREAM_CAPTURE_MERGE),
    NAME(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED),
    NAME(CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
    NAME(CUDA_ERROR_STREAM_CAPTURE_ISOLATION),
    NAME(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
    NAME(CUDA_ERROR_CAPTURED_EVENT),
    NAME(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
    NAME(CUDA_ERROR_TIMEOUT),
    NAME(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE),
    NAME(CUDA_ERROR_EXTERNAL_DEVICE),
    NAME(CUDA_ERROR_UNKNOWN),
};
#undef NAME

bool IsDevice(CUdevice device) { return device >= 0 && device < Driver().devices; }

CUcontext Primary(CUdevice device) {
  auto& contexts = Driver().contexts;
  while (contexts.size() <= static_cast<std::size_t>(device)) {
    contexts.push_back(std::make_unique<CUctx_st>());
    contexts.back()->device = static_cast<CUdevice>(contexts.size() - 1);
  }
  return contexts[static_cast<std::size_t>(device)].get();
}

// As on an H100 with 80 GB (SXM).
int Attribute(CUdevice_attribute attribute) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 49152;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return 232448;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return 233472;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 65536;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 132;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return 2048;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return 32;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return 52428800;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1980000;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return 2619000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return 5120;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return Driver().capability / 10;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return Driver().capability % 10;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 3;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT: return 512;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: return 1;
    default: return 0;
  }
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** text) {
  const auto* found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                   [&](const ErrorName& e) { return e.code == error; });
  *text = found == std::end(kErrors) ? nullptr : found->name;
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) {
  return cuGetErrorName(error, text);
}

CUresult CUDAAPI cuInit(unsigned flags) {
  STANDIN_CALL(Call::kNothing)
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (Driver().devices == 0) return CUDA_ERROR_NO_DEVICE;
  Driver().initialized = true;
  standin::InstallTouchHandler();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDriverGetVersion(int* version) {
  STANDIN_CALL(Call::kNothing)
  *version = Driver().driver_version;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetCount(int* count) {
  STANDIN_CALL(Call::kInit)
  *count = Driver().devices;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  STANDIN_CALL(Call::kInit)
  if (!IsDevice(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetName(char* name, int bytes, CUdevice device) {
  STANDIN_CALL(Call::kInit)
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<std::size_t>(bytes), "caesura's stand-in for a GPU");
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  STANDIN_CALL(Call::kInit)
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::memset(uuid->bytes, device + 1, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetPCIBusId(char* id, int bytes, CUdevice device) {
  STANDIN_CALL(Call::kInit)
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(id, static_cast<std::size_t>(bytes), "0000:%02x:00.0", device + 1);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceTotalMem(std::size_t* bytes, CUdevice device) {
  STANDIN_CALL(Call::kInit)
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = Driver().memory;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  STANDIN_CALL(Call::kInit)
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? device + 1 : Attribute(attribute);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceCanAccessPeer(int* can, CUdevice a, CUdevice b) {
  STANDIN_CALL(Call::kInit)
  if (!IsDevice(a) || !IsDevice(b)) return CUDA_ERROR_INVALID_DEVICE;
  *can = a != b;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  STANDIN_CALL(Call::kInit)
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *context = Primary(device);
  ++(*context)->retained;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
  STANDIN_CALL(Call::kInit)
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  CUcontext context = Primary(device);
  if (context->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--context->retained == 0) context->sticky = CUDA_SUCCESS;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device) {
  STANDIN_CALL(Call::kInit)
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  Primary(device)->sticky = CUDA_SUCCESS;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned) {
  STANDIN_CALL(Call::kInit)
  return IsDevice(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  STANDIN_CALL(Call::kInit)
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = Primary(device)->retained > 0;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
  STANDIN_CALL(Call::kInit)
  auto& stack = standin::ThreadContexts();
  if (!stack.empty()) stack.pop_back();
  if (context != nullptr) stack.push_back(context);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxGetCurrent(CUcontext* context) {
  STANDIN_CALL(Call::kInit)
  *context = standin::CurrentContext();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) {
  STANDIN_CALL(Call::kInit)
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  standin::ThreadContexts().push_back(context);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxPopCurrent(CUcontext* context) {
  STANDIN_CALL(Call::kInit)
  auto& stack = standin::ThreadContexts();
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
  STANDIN_CALL(Call::kContext)
  *device = standin::CurrentContext()->device;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  STANDIN_CALL(Call::kContext)
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxSynchronize() {
  STANDIN_CALL(Call::kContext | Call::kUnsafeInCapture)
  ++Driver().waits;
  return standin::WaitForAll(standin::CurrentContext());
}

CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** address, int version, cuuint64_t,
                                  CUdriverProcAddressQueryResult* status) {
  STANDIN_CALL(Call::kNothing)
  *address = nullptr;
  Dl_info self{};
  dladdr(reinterpret_cast<void*>(&cuInit), &self);
  void* library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (version >= 4000 && library != nullptr) {
    for (const char* suffix : {"_v3", "_v2", ""}) {
      *address = dlsym(library, (std::string(symbol) + suffix).c_str());
      if (*address != nullptr) break;
    }
  }
  if (library != nullptr) dlclose(library);
  if (status != nullptr) {
    *status =
        *address != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return *address != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"
