// SPDX-License-Identifier: Apache-2.0
#include "standin_device.h"
#include <nvrtc.h>
#include <fstream>
#include <sstream>

namespace standin_test {

std::string Reports() {
  std::string all;
  for (std::size_t i = 0; i < standin_report_count(); ++i) {
    all += standin_report(i);
    all += '\n';
  }
  return all;
}

std::string KernelText(const std::string& file) {
  std::ifstream stream(STANDIN_KERNELS "/" + file);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

Program Compile(const std::string& text, const std::vector<std::string>& expressions,
                const std::vector<std::string>& options) {
  Program result;
  nvrtcProgram program = nullptr;
  EXPECT_EQ(nvrtcCreateProgram(&program, text.c_str(), "test.cu", 0, nullptr, nullptr),
            NVRTC_SUCCESS);
  for (const std::string& expression : expressions) {
    EXPECT_EQ(nvrtcAddNameExpression(program, expression.c_str()), NVRTC_SUCCESS);
  }
  std::vector<const char*> all = {"--gpu-architecture=sm_90", "-std=c++20",
                                  "-I" STANDIN_CUDA_HEADERS};
  for (const std::string& option : options) all.push_back(option.c_str());
  const nvrtcResult compiled =
      nvrtcCompileProgram(program, static_cast<int>(all.size()), all.data());
  std::size_t bytes = 0;
  nvrtcGetProgramLogSize(program, &bytes);
  std::string log(bytes, ' ');
  nvrtcGetProgramLog(program, log.data());
  EXPECT_EQ(compiled, NVRTC_SUCCESS) << log;
  if (compiled == NVRTC_SUCCESS) {
    EXPECT_EQ(nvrtcGetCUBINSize(program, &bytes), NVRTC_SUCCESS);
    result.image.resize(bytes);
    EXPECT_EQ(nvrtcGetCUBIN(program, result.image.data()), NVRTC_SUCCESS);
    for (const std::string& expression : expressions) {
      const char* name = "";
      EXPECT_EQ(nvrtcGetLoweredName(program, expression.c_str(), &name), NVRTC_SUCCESS);
      result.lowered.emplace_back(name);
    }
  }
  EXPECT_EQ(nvrtcDestroyProgram(&program), NVRTC_SUCCESS);
  return result;
}

Device::Device(std::uint64_t seed) {
  standin_reset(seed);
  CUcontext context = nullptr;
  EXPECT_CUDA(cuInit(0));
  EXPECT_CUDA(cuDevicePrimaryCtxRetain(&context, 0));
  EXPECT_CUDA(cuCtxSetCurrent(context));
}

CUstream Device::Stream() {
  CUstream stream = nullptr;
  EXPECT_CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

CUevent Device::Event() {
  CUevent event = nullptr;
  EXPECT_CUDA(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  return event;
}

CUdeviceptr Device::Memory(std::size_t bytes) {
  CUdeviceptr at = 0;
  EXPECT_CUDA(cuMemAlloc(&at, bytes));
  return at;
}

float* Device::Pinned(std::size_t count) {
  void* at = nullptr;
  EXPECT_CUDA(cuMemAllocHost(&at, count * sizeof(float)));
  return static_cast<float*>(at);
}

CUfunction Device::Load(const Program& program, const std::string& name) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  EXPECT_CUDA(cuModuleLoadData(&module, program.image.data()));
  EXPECT_CUDA(cuModuleGetFunction(&function, module, name.c_str()));
  return function;
}

}  // namespace standin_test
