// SPDX-License-Identifier: Apache-2.0
// The CUDA provider on the stand-ins for CUDA's libraries (tests/cuda/README.md), or on a real GPU.
#ifndef CAESURA_TESTS_CORE_PROVIDERS_CUDA_STANDIN_CUDA_H_
#define CAESURA_TESTS_CORE_PROVIDERS_CUDA_STANDIN_CUDA_H_

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/providers/cuda/cuda_provider.h"
#include "tests/cuda/standin.h"
#include "tests/test_paths.h"

namespace caesura::testing {

// True where CAESURA_TEST_GPU is set (benchmarks/gpu/gpu_check.py): tests run with the libraries
// that the system finds. Those that steer the stand-ins are skipped.
inline bool OnGpu() { return std::getenv("CAESURA_TEST_GPU") != nullptr; }
#define SKIP_ON_GPU() \
  if (OnGpu()) GTEST_SKIP() << "steers the stand-ins"

// The stand-ins are new at the start of each test. At its end nothing may have been reported: no
// access out of order, out of bounds, or to freed memory. Compiled kernels are not kept on disk.
//
// On a GPU nothing is checked but what the test itself compares.
class StandinCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (OnGpu()) return;
    ::setenv("CAESURA_PROGRAM_CACHE", "off", 1);
    driver_ = dlopen(kStandinDriver, RTLD_NOW | RTLD_GLOBAL);
    ASSERT_NE(driver_, nullptr) << dlerror();
    Call<decltype(standin_reset)>("standin_reset")(seed_);
  }
  void TearDown() override {
    if (OnGpu()) return;
    for (const std::string& report : Reports()) ADD_FAILURE() << report;
  }

  static CudaOptions Options() {
    CudaOptions out;
    if (OnGpu()) return out;
    out.libraries = {kStandinDriver, kCheckedNvrtc, kStandinCublasLt, kStandinCudnn};
    return out;
  }
  // Without the real NVRTC's check: for sources that other tests have had checked, made many times.
  static CudaOptions Unchecked() {
    CudaOptions out = Options();
    if (!OnGpu()) out.libraries.nvrtc = kStandinNvrtc;
    return out;
  }
  static std::shared_ptr<const ExecutionProvider> Provider(const CudaOptions& options = Options()) {
    auto made = MakeCudaProvider(options);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return made.ok() ? *made : nullptr;
  }

  // The control function of this name, of the driver or another stand-in. REQUIRES: no GPU.
  template <typename Function>
  Function* Call(const char* name) const {
    return Find<Function>(driver_, name);
  }
  template <typename Function>
  static Function* CallOf(const char* library, const char* name) {
    void* const opened = dlopen(library, RTLD_NOW);
    EXPECT_NE(opened, nullptr) << dlerror();
    return Find<Function>(opened, name);
  }
  std::vector<std::string> Reports() const {
    std::vector<std::string> out;
    const size_t count = Call<decltype(standin_report_count)>("standin_report_count")();
    for (size_t i = 0; i < count; ++i)
      out.push_back(Call<decltype(standin_report)>("standin_report")(i));
    Call<decltype(standin_clear_reports)>("standin_clear_reports")();
    return out;
  }
  // 0 on a GPU, where nobody counts.
  uint64_t Operations(const char* name) const {
    return OnGpu() ? 0 : Call<decltype(standin_operations)>("standin_operations")(name);
  }

  uint64_t seed_ = 1;

 private:
  template <typename Function>
  static Function* Find(void* library, const char* name) {
    void* found = dlsym(library, name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<Function*>(found);
  }

  void* driver_ = nullptr;
};

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_PROVIDERS_CUDA_STANDIN_CUDA_H_
