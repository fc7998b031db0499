// SPDX-License-Identifier: Apache-2.0
// The stand-in NVRTC, and the real one for the example kernels: what g++ takes, it must take too.
#include <dlfcn.h>
#include <nvrtc.h>
#include <cstring>
#include <filesystem>
#include "standin_device.h"

namespace standin_test {
namespace {

using ::testing::HasSubstr;

// Compiles with functions found in a library; the log, or "" where all went well.
std::string CompileWith(void* library, const std::string& text, const std::string& architecture,
                        const std::vector<std::string>& expressions, nvrtcResult* result) {
  const auto find = [&]<typename F>(F*, const char* name) {
    return reinterpret_cast<F*>(dlsym(library, name));
  };
#define FIND(NAME) const auto NAME##_ = find(&NAME, #NAME)
  FIND(nvrtcCreateProgram);
  FIND(nvrtcAddNameExpression);
  FIND(nvrtcCompileProgram);
  FIND(nvrtcGetProgramLogSize);
  FIND(nvrtcGetProgramLog);
  FIND(nvrtcDestroyProgram);
#undef FIND
  nvrtcProgram program = nullptr;
  nvrtcCreateProgram_(&program, text.c_str(), "test.cu", 0, nullptr, nullptr);
  for (const std::string& expression : expressions) {
    nvrtcAddNameExpression_(program, expression.c_str());
  }
  const std::string option = "--gpu-architecture=" + architecture;
  const char* options[] = {option.c_str(), "-std=c++20", "-I" STANDIN_CUDA_HEADERS};
  *result = nvrtcCompileProgram_(program, 3, options);
  std::size_t bytes = 0;
  nvrtcGetProgramLogSize_(program, &bytes);
  std::string log(bytes, '\0');
  nvrtcGetProgramLog_(program, log.data());
  nvrtcDestroyProgram_(&program);
  return log.c_str();
}

TEST(NvrtcTest, RealOneTakesTheExamplesForEveryChip) {
  // NVRTC looks for it by name only.
  dlopen(STANDIN_CUDA_HEADERS "/../lib/libnvrtc-builtins.so.13.0", RTLD_NOW);
  void* real = dlopen(STANDIN_CUDA_HEADERS "/../lib/libnvrtc.so.13", RTLD_NOW | RTLD_LOCAL);
  if (real == nullptr) GTEST_SKIP() << "NVRTC is not installed: " << dlerror();
  const std::vector<std::string> softmax = {"softmax<float, 128>", "softmax<__nv_bfloat16, 256>"};
  for (const char* architecture : {"sm_80", "sm_90", "sm_100"}) {
    for (const auto& [file, expressions] :
         {std::pair{"add.cuh", std::vector<std::string>{}}, std::pair{"softmax.cuh", softmax},
          std::pair{"layer_norm.cuh", std::vector<std::string>{}}}) {
      nvrtcResult result{};
      const std::string log =
          CompileWith(real, KernelText(file), architecture, expressions, &result);
      EXPECT_EQ(result, NVRTC_SUCCESS) << file << " for " << architecture << ": " << log;
    }
  }
}

TEST(NvrtcTest, MistakesHaveTheRealCodes) {
  nvrtcProgram program = nullptr;
  const char* name = nullptr;
  ASSERT_EQ(nvrtcCreateProgram(&program, "__global__ void f() { nothing; }", "test.cu", 0, nullptr,
                               nullptr),
            NVRTC_SUCCESS);
  EXPECT_EQ(nvrtcGetLoweredName(program, "f", &name),
            NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION);
  const char* unknown[] = {"--no-such-option"};
  EXPECT_EQ(nvrtcCompileProgram(program, 1, unknown), NVRTC_ERROR_INVALID_OPTION);
  const char* no_chip[] = {"--gpu-architecture=sm_42"};
  EXPECT_EQ(nvrtcCompileProgram(program, 1, no_chip), NVRTC_ERROR_INVALID_OPTION);
  const char* chip[] = {"--gpu-architecture=sm_90"};
  EXPECT_EQ(nvrtcCompileProgram(program, 1, chip), NVRTC_ERROR_COMPILATION);
  std::size_t bytes = 0;
  ASSERT_EQ(nvrtcGetProgramLogSize(program, &bytes), NVRTC_SUCCESS);
  std::string log(bytes, '\0');
  ASSERT_EQ(nvrtcGetProgramLog(program, log.data()), NVRTC_SUCCESS);
  EXPECT_THAT(log, HasSubstr("test.cu:1"));
  EXPECT_EQ(nvrtcAddNameExpression(program, "f"),
            NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION);
  EXPECT_EQ(nvrtcDestroyProgram(&program), NVRTC_SUCCESS);
}

TEST(NvrtcTest, CompiledKernelsAreKeptUntilSomethingChanges) {
  const std::string folder = ::testing::TempDir() + "standin-kernels-test";
  std::filesystem::remove_all(folder);
  standin_nvrtc_set_cache(folder.c_str());
  const std::string text = "extern \"C\" __global__ void f(int* x) { *x = N; }";
  const std::uint64_t before = standin_nvrtc_compiled();
  Compile(text, {}, {"-DN=1"});
  Compile(text, {}, {"-DN=1"});
  EXPECT_EQ(standin_nvrtc_compiled() - before, 1u);
  Compile(text, {}, {"-DN=2"});
  EXPECT_EQ(standin_nvrtc_compiled() - before, 2u);
  std::filesystem::remove_all(folder);
  standin_nvrtc_set_cache(STANDIN_CACHE);
}

TEST(NvrtcTest, KernelsHaveTheirMangledNames) {
  const Program program = Compile(
      "template <typename T, int N> __global__ void f(T* x) { *x = N; }\n"
      "namespace n { __global__ void g(float* x) { *x = 1; } }\n"
      "__global__ void __launch_bounds__(32) h(float* x, int) { *x = 2; }\n"
      "__device__ int counter = 3;\n",
      {"f<float, 3>", "n::g", "&counter"});
  EXPECT_THAT(program.lowered, ::testing::ElementsAre("_Z1fIfLi3EEvPT_", "_ZN1n1gEPf", "counter"));
  Device device(1);
  for (const char* name : {"_Z1fIfLi3EEvPT_", "_ZN1n1gEPf", "_Z1hPfi"}) {
    EXPECT_NE(device.Load(program, name), nullptr);
  }
  CUmodule module = nullptr;
  CUdeviceptr counter = 0;
  std::size_t bytes = 0;
  int value = 0;
  ASSERT_CUDA(cuModuleLoadData(&module, program.image.data()));
  ASSERT_CUDA(cuModuleGetGlobal(&counter, &bytes, module, "counter"));
  EXPECT_EQ(bytes, sizeof(int));
  ASSERT_CUDA(cuMemcpyDtoH(&value, counter, bytes));
  EXPECT_EQ(value, 3);
  CUfunction function = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&function, module, "no_such"), CUDA_ERROR_NOT_FOUND);
}

TEST(NvrtcTest, ImageForLaterChipIsRefused) {
  nvrtcProgram program = nullptr;
  ASSERT_EQ(nvrtcCreateProgram(&program, "__global__ void f() {}", "test.cu", 0, nullptr, nullptr),
            NVRTC_SUCCESS);
  const char* chip[] = {"--gpu-architecture=sm_100"};
  ASSERT_EQ(nvrtcCompileProgram(program, 1, chip), NVRTC_SUCCESS);
  std::size_t bytes = 0;
  nvrtcGetCUBINSize(program, &bytes);
  std::string image(bytes, '\0');
  nvrtcGetCUBIN(program, image.data());
  nvrtcDestroyProgram(&program);
  Device device(1);
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoadData(&module, image.data()), CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(cuModuleLoadData(
                &module, "//\n.version 9.0\n.target sm_90 and more of it than a header has bytes"),
            CUDA_ERROR_INVALID_IMAGE);
}

}  // namespace
}  // namespace standin_test
