// SPDX-License-Identifier: Apache-2.0
// cuda.h: modules, functions, launches.
#include <dlfcn.h>
#include <link.h>
#include <cstring>
#include "driver/state.h"

using standin::Call;
using standin::Driver;
using standin::FindStream;
using standin::Operation;

namespace {

constexpr int kStaticShared = 48 << 10;  // what a launch may have without asking

bool IsFunction(CUfunction function) {
  for (const auto& [handle, module] : Driver().modules) {
    for (const auto& [name, held] : module->functions) {
      if (held.get() == function) return true;
    }
  }
  return false;
}

// Copies of the arguments, from either of the two ways to give them; empty with an error.
CUresult TakeArguments(CUfunction function, void** parameters, void** extra,
                       std::vector<std::vector<char>>& copies) {
  const caesura_emulator::Entry& entry = *function->entry;
  const char* buffer = nullptr;
  if (parameters == nullptr && extra != nullptr) {
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
      if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<const char*>(extra[1]);
    }
  }
  if (parameters == nullptr && buffer == nullptr && entry.count > 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::size_t offset = 0;
  for (unsigned i = 0; i < entry.count; ++i) {
    const std::size_t bytes = entry.sizes[i];
    std::size_t alignment = 1;
    while (alignment < 16 && bytes % (alignment * 2) == 0) alignment *= 2;
    offset = (offset + alignment - 1) / alignment * alignment;
    const char* from =
        parameters != nullptr ? static_cast<const char*>(parameters[i]) : buffer + offset;
    if (from == nullptr) return CUDA_ERROR_INVALID_VALUE;
    copies.emplace_back(from, from + bytes);
    offset += bytes;
  }
  return CUDA_SUCCESS;
}

CUresult Launch(CUfunction function, const CUlaunchConfig& config, void** parameters,
                void** extra) {
  const CUstream stream = FindStream(config.hStream);
  if (stream == nullptr || !IsFunction(function)) return CUDA_ERROR_INVALID_HANDLE;
  const std::uint64_t threads =
      std::uint64_t{config.blockDimX} * config.blockDimY * config.blockDimZ;
  if (threads == 0 || threads > 1024 || config.blockDimZ > 64 || config.gridDimX == 0 ||
      config.gridDimX > 2147483647u || config.gridDimY == 0 || config.gridDimY > 65535 ||
      config.gridDimZ == 0 || config.gridDimZ > 65535 ||
      config.sharedMemBytes > static_cast<unsigned>(function->most_dynamic_shared)) {
    standin::Report("launch of " + function->name + ": " + std::to_string(threads) +
                    " threads a block, " + std::to_string(config.sharedMemBytes) +
                    " bytes of dynamic shared memory or the grid are beyond what is allowed");
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto copies = std::make_shared<std::vector<std::vector<char>>>();
  const CUresult error = TakeArguments(function, parameters, extra, *copies);
  if (error != CUDA_SUCCESS) return error;
  caesura_emulator::Launch launch;
  launch.grid[0] = config.gridDimX;
  launch.grid[1] = config.gridDimY;
  launch.grid[2] = config.gridDimZ;
  launch.block[0] = config.blockDimX;
  launch.block[1] = config.blockDimY;
  launch.block[2] = config.blockDimZ;
  const unsigned shared = config.sharedMemBytes;
  const CUresult put = standin::Enqueue(
      stream, {"kernel " + function->name, {}, [=](Operation& operation) {
                 std::vector<void*> arguments;
                 for (std::vector<char>& copy : *copies) arguments.push_back(copy.data());
                 return standin::RunKernel(function, launch, shared, arguments, operation);
               }});
  if (put != CUDA_SUCCESS || !standin::Driver().blocks_launches) return put;
  return standin::WaitFor(stream);
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
  STANDIN_CALL(Call::kContext | Call::kUnsafeInCapture)
  return standin::LoadModule(image, module);
}
CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*,
                                    void**) {
  STANDIN_CALL(Call::kContext | Call::kUnsafeInCapture)
  return standin::LoadModule(image, module);
}
CUresult CUDAAPI cuModuleUnload(CUmodule module) {
  STANDIN_CALL(Call::kContext | Call::kUnsafeInCapture)
  if (!Driver().modules.contains(module)) return CUDA_ERROR_INVALID_HANDLE;
  standin::RunAll();
  standin::UnloadModule(module);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  STANDIN_CALL(Call::kContext)
  if (!Driver().modules.contains(module)) return CUDA_ERROR_INVALID_HANDLE;
  const auto found = module->functions.find(name);
  if (found == module->functions.end()) return CUDA_ERROR_NOT_FOUND;
  *function = found->second.get();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuModuleGetGlobal(CUdeviceptr* at, std::size_t* bytes, CUmodule module,
                                   const char* name) {
  STANDIN_CALL(Call::kContext)
  if (!Driver().modules.contains(module)) return CUDA_ERROR_INVALID_HANDLE;
  Dl_info info{};
  void* symbol = nullptr;
  void* found = dlsym(module->library, name);
  if (found == nullptr || dladdr1(found, &info, &symbol, RTLD_DL_SYMENT) == 0 ||
      symbol == nullptr) {
    return CUDA_ERROR_NOT_FOUND;
  }
  if (at != nullptr) *at = standin::Address(found);
  if (bytes != nullptr) *bytes = static_cast<const ElfW(Sym)*>(symbol)->st_size;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncLoad(CUfunction function) {
  STANDIN_CALL(Call::kContext)
  return IsFunction(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute attribute,
                                    CUfunction function) {
  STANDIN_CALL(Call::kContext)
  if (!IsFunction(function)) return CUDA_ERROR_INVALID_HANDLE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *value = 90; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = function->most_dynamic_shared;
      break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute,
                                    int value) {
  STANDIN_CALL(Call::kContext)
  if (!IsFunction(function)) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  if (value < 0 || value > static_cast<int>(caesura_emulator::kMostDynamicShared)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  function->most_dynamic_shared = std::max(value, kStaticShared);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncGetName(const char** name, CUfunction function) {
  STANDIN_CALL(Call::kContext)
  if (!IsFunction(function)) return CUDA_ERROR_INVALID_HANDLE;
  *name = function->lowered.c_str();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function,
                                                             int threads, std::size_t shared) {
  STANDIN_CALL(Call::kContext)
  if (!IsFunction(function) || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = std::min(32, 2048 / threads);
  if (shared > 0) *blocks = std::min(*blocks, static_cast<int>(233472 / (shared + 1024)));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                unsigned grid_z, unsigned block_x, unsigned block_y,
                                unsigned block_z, unsigned shared, CUstream stream,
                                void** parameters, void** extra) {
  STANDIN_CALL(Call::kContext)
  const CUlaunchConfig config{grid_x,  grid_y, grid_z, block_x, block_y,
                              block_z, shared, stream, nullptr, 0};
  return Launch(function, config, parameters, extra);
}
CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function,
                                  void** parameters, void** extra) {
  STANDIN_CALL(Call::kContext)
  return Launch(function, *config, parameters, extra);
}

}  // extern "C"
