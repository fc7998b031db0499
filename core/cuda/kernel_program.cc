// SPDX-License-Identifier: Apache-2.0
#include "core/cuda/kernel_program.h"

#include "core/cuda/kernel_cache.h"

namespace caesura {
namespace {

std::vector<std::string> OptionsOf(const KernelProgram& program) {
  std::vector<std::string> out = {"--gpu-architecture=" + program.architecture};
  out.insert(out.end(), program.options.begin(), program.options.end());
  return out;
}

}  // namespace

std::string KernelKey(const CudaLibraries& libraries, const KernelProgram& program) {
  int major = 0, minor = 0;
  if (libraries.nvrtc.nvrtcVersion(&major, &minor) != NVRTC_SUCCESS) return {};
  std::string key = "nvrtc " + std::to_string(major) + "." + std::to_string(minor) + "\n";
  for (const std::string& option : OptionsOf(program))
    key += std::to_string(option.size()) + " " + option + "\n";
  return key + "\n" + program.source;
}

std::optional<std::string> KeptKernel(const CudaLibraries& libraries,
                                      const KernelProgram& program) {
  const std::string key = KernelKey(libraries, program);
  return key.empty() ? std::nullopt : LoadKernel(key);
}

Result<std::string> CompileKernel(const CudaLibraries& libraries, const KernelProgram& program) {
  const auto& nvrtc = libraries.nvrtc;
  nvrtcProgram made = nullptr;
  nvrtcResult result =
      nvrtc.nvrtcCreateProgram(&made, program.source.c_str(), "caesura.cu", 0, nullptr, nullptr);
  std::string code, log;
  if (result == NVRTC_SUCCESS) {
    const std::vector<std::string> options = OptionsOf(program);
    std::vector<const char*> texts;
    for (const std::string& option : options) texts.push_back(option.c_str());
    result = nvrtc.nvrtcCompileProgram(made, static_cast<int>(texts.size()), texts.data());
    size_t size = 0;
    if (nvrtc.nvrtcGetProgramLogSize(made, &size) == NVRTC_SUCCESS && size > 1) {
      log.resize(size);
      nvrtc.nvrtcGetProgramLog(made, log.data());
    }
  }
  if (result == NVRTC_SUCCESS) {
    size_t size = 0;
    result = nvrtc.nvrtcGetCUBINSize(made, &size);
    code.resize(size);
    if (result == NVRTC_SUCCESS) result = nvrtc.nvrtcGetCUBIN(made, code.data());
  }
  if (made != nullptr) nvrtc.nvrtcDestroyProgram(&made);
  if (result != NVRTC_SUCCESS) {
    return Internal("NVRTC does not compile a kernel for " + program.architecture + ": " +
                    nvrtc.nvrtcGetErrorString(result) + "\n" + log + "\n" + program.source);
  }
  if (const std::string key = KernelKey(libraries, program); !key.empty()) StoreKernel(key, code);
  return code;
}

}  // namespace caesura
