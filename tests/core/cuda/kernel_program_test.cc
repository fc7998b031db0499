// SPDX-License-Identifier: Apache-2.0
// Compiled kernels on disk: what is compiled again, and what is not.
#include "core/cuda/kernel_program.h"

#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "core/base/log.h"
#include "core/cuda/cuda_device.h"
#include "core/cuda/kernel_cache.h"
#include "tests/core/providers/cuda/standin_cuda.h"
#include "tests/temporary_folder.h"

namespace caesura::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kChild[] = "CAESURA_TEST_KERNELS_OF";  // set in the second process

std::string Source(int number) {
  return "extern \"C\" __global__ void f(float* x) { x[threadIdx.x] = " + std::to_string(number) +
         "; }\n";
}

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

class CudaKernelPrograms : public StandinCuda {
 protected:
  void SetUp() override {
    SKIP_ON_GPU();
    StandinCuda::SetUp();
    const char* given = std::getenv(kChild);
    Keep(given != nullptr ? given : folder_.path("a/programs"));
    calls_before_ = AllCalls();
  }
  void TearDown() override {
    StandinCuda::TearDown();
    Keep("off");
    ::unsetenv("CAESURA_PROGRAM_CACHE_MEGABYTES");
  }

  void Keep(const std::string& folder) {
    kept_ = folder;
    ::setenv("CAESURA_PROGRAM_CACHE", folder.c_str(), 1);
  }
  // Calls of nvrtcCompileProgram since this was asked last.
  uint64_t Compiled() { return AllCalls() - std::exchange(calls_before_, AllCalls()); }
  // Runs the kernel `f` of the source and returns what it has written.
  static float Run(CudaDevice& device, const std::string& source) {
    const auto function = device.Function(source, "f");
    if (!function.ok()) {
      ADD_FAILURE() << function.status().ToString();
      return 0;
    }
    const auto memory = device.Allocate(sizeof(float)).value();
    void* address = memory->data();
    void* arguments[] = {&address};
    EXPECT_TRUE(device.Launch(*function, 1, 1, 0, arguments).ok());
    float out = 0;
    EXPECT_TRUE(device.CopyToHost(&out, address, sizeof(out)).ok());
    EXPECT_TRUE(device.Synchronise().ok());
    return out;
  }
  static std::shared_ptr<CudaDevice> Device() { return CudaDevice::Create(Unchecked()).value(); }
  static std::shared_ptr<const CudaLibraries> Libraries() {
    return OpenCudaLibraries(Unchecked().libraries).value();
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> out;
    if (!fs::exists(kept_)) return out;
    for (const auto& file : fs::directory_iterator(kept_)) out.push_back(file.path());
    return out;
  }

  TemporaryFolder folder_;
  std::string kept_;

 private:
  static uint64_t AllCalls() {
    return CallOf<decltype(standin_nvrtc_calls)>(kStandinNvrtc, "standin_nvrtc_calls")();
  }

  uint64_t calls_before_ = 0;
};

TEST_F(CudaKernelPrograms, ASecondDeviceCompilesNothing) {
  const auto first = Device();
  EXPECT_EQ(Run(*first, Source(7)), 7);
  EXPECT_EQ(Compiled(), 1u);
  EXPECT_EQ(Run(*first, Source(7)), 7);
  EXPECT_EQ(Run(*Device(), Source(7)), 7);
  EXPECT_EQ(Compiled(), 0u);
  EXPECT_EQ(Files().size(), 1u);
}

TEST_F(CudaKernelPrograms, ASecondProcessCompilesNothing) {
  const bool is_child = std::getenv(kChild) != nullptr;
  EXPECT_EQ(Run(*Device(), Source(7)), 7);
  EXPECT_EQ(Run(*Device(), Source(8)), 8);
  EXPECT_EQ(Compiled(), is_child ? 0u : 2u);
  if (is_child) return;
  const std::string program = fs::read_symlink("/proc/self/exe");
  const std::string command = "env -u GTEST_OUTPUT -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX " +
                              std::string(kChild) + "='" + kept_ + "' '" + program +
                              "' --gtest_filter=CudaKernelPrograms.ASecondProcessCompilesNothing"
                              " >'" +
                              folder_.path("log") + "' 2>&1";
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << Read(folder_.path("log"));
  EXPECT_THAT(Read(folder_.path("log")), HasSubstr("1 test"));
}

TEST_F(CudaKernelPrograms, AnotherSourceOrChipIsCompiled) {
  Run(*Device(), Source(1));
  EXPECT_EQ(Compiled(), 1u);
  Run(*Device(), Source(2));
  EXPECT_EQ(Compiled(), 1u);
  Call<decltype(standin_set_capability)>("standin_set_capability")(80);
  const auto older = Device();
  EXPECT_EQ(older->architecture(), "sm_80");
  Run(*older, Source(1));
  EXPECT_EQ(Compiled(), 1u);
  EXPECT_EQ(Files().size(), 3u);
}

TEST_F(CudaKernelPrograms, AnotherOptionOrVersionIsCompiled) {
  const auto libraries = Libraries();
  const KernelProgram program{Source(1), "sm_90"};
  ASSERT_TRUE(CompileKernel(*libraries, program).ok());
  EXPECT_TRUE(KeptKernel(*libraries, program).has_value());
  KernelProgram other = program;
  other.options.push_back("--maxrregcount=32");
  EXPECT_FALSE(KeptKernel(*libraries, other).has_value());
  other.options = {"--std=c++17 --fmad=false"};  // one option of that text
  EXPECT_FALSE(KeptKernel(*libraries, other).has_value());
  CudaLibraries newer = *libraries;
  newer.nvrtc.nvrtcVersion = [](int* major, int* minor) {
    *major = 13, *minor = 1;
    return NVRTC_SUCCESS;
  };
  EXPECT_FALSE(KeptKernel(newer, program).has_value());
  newer.nvrtc.nvrtcVersion = [](int*, int*) { return NVRTC_ERROR_INTERNAL_ERROR; };
  EXPECT_FALSE(KeptKernel(newer, program).has_value());
  EXPECT_TRUE(CompileKernel(newer, program).ok());
  EXPECT_EQ(Files().size(), 1u);
}

TEST_F(CudaKernelPrograms, BrokenFilesAreReplaced) {
  const std::string key = KernelKey(*Libraries(), {Source(3), "sm_90"}), path = KernelFile(key);
  Run(*Device(), Source(3));
  const std::string whole = Read(path);
  ASSERT_TRUE(LoadKernel(key).has_value());
  std::vector<std::string> broken;
  for (size_t size : {0, 1, 16, 17, 24, 25, 32, 40, 100}) broken.push_back(whole.substr(0, size));
  broken.push_back(whole.substr(0, whole.size() - 1));
  broken.push_back(whole + "x");
  for (size_t byte = 0; byte < 33 + key.size(); ++byte) {
    broken.push_back(whole);
    broken.back()[byte] ^= static_cast<char>(1 << byte % 8);
  }
  broken.push_back(whole);
  broken.back().back() ^= 1;
  StoreKernel("another key", "code");
  broken.push_back(Read(KernelFile("another key")));
  StoreKernel(key, "");
  broken.push_back(Read(path));
  Compiled();
  ::testing::internal::CaptureStderr();
  for (const std::string& content : broken) {
    Write(path, content);
    EXPECT_FALSE(LoadKernel(key).has_value());
  }
  EXPECT_EQ(Run(*Device(), Source(3)), 3);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(" is damaged and not used: it "));
  EXPECT_EQ(Compiled(), 1u);
  EXPECT_EQ(Read(path), whole);
}

TEST_F(CudaKernelPrograms, OtherThanFilesAndHugeFilesAreNotRead) {
  const std::string key = KernelKey(*Libraries(), {Source(3), "sm_90"}), path = KernelFile(key);
  Run(*Device(), Source(3));
  const std::string elsewhere = folder_.path("elsewhere");
  fs::rename(path, elsewhere);
  fs::create_symlink(elsewhere, path);
  EXPECT_FALSE(LoadKernel(key).has_value());
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_FALSE(LoadKernel(key).has_value());
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Run(*Device(), Source(3)), 3);
  ::testing::internal::GetCapturedStderr();
  fs::remove(path);
  fs::copy(elsewhere, path);
  fs::resize_file(path, kLargestKernelFile + 1);
  EXPECT_FALSE(LoadKernel(key).has_value());
}

// Code of another NVRTC, or of a chip that the driver does not take.
TEST_F(CudaKernelPrograms, CodeThatTheDriverRefusesIsReplaced) {
  const std::string key = KernelKey(*Libraries(), {Source(3), "sm_90"});
  StoreKernel(key, std::string(200, 'x'));
  EXPECT_EQ(Run(*Device(), Source(3)), 3);
  EXPECT_EQ(Compiled(), 1u);
  EXPECT_EQ(Run(*Device(), Source(3)), 3);
  EXPECT_EQ(Compiled(), 0u);
}

TEST_F(CudaKernelPrograms, AFailedCompileLeavesNothing) {
  const auto device = Device();
  for (int i = 0; i < 2; ++i) {
    const Status status = device->Function("no source", "f").status();
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr("NVRTC does not compile a kernel for sm_90"));
    EXPECT_EQ(Compiled(), 1u);
  }
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(CudaKernelPrograms, WithoutACacheAllIsCompiled) {
  for (const std::string& folder : {std::string("off"), folder_.path("file") + "/programs"}) {
    Write(folder_.path("file"), "a file where the folder would be");
    Keep(folder);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Run(*Device(), Source(3)), 3);
    EXPECT_EQ(Run(*Device(), Source(3)), 3);
    ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(Compiled(), 2u);
  }
}

TEST_F(CudaKernelPrograms, ToldThatTheyCannotBeKept) {
  Keep(folder_.path("file"));
  Write(kept_, "");
  StoreKernel("a", "code");
  EXPECT_TRUE(LostParts().contains("the cache of CUDA kernels"));
}

TEST_F(CudaKernelPrograms, TheFolderStaysWithinItsLimit) {
  ::setenv("CAESURA_PROGRAM_CACHE_MEGABYTES", "1", 1);
  const std::string code(400 << 10, 'x');
  const auto now = fs::file_time_type::clock::now();
  StoreKernel("a", code);
  fs::last_write_time(KernelFile("a"), now - std::chrono::hours(2));
  StoreKernel("b", code);
  fs::last_write_time(KernelFile("b"), now - std::chrono::hours(1));
  Write(kept_ + "/notes.txt", std::string(2 << 20, 'x'));
  EXPECT_TRUE(LoadKernel("a").has_value());  // used now
  StoreKernel("c", code);
  EXPECT_TRUE(LoadKernel("a").has_value() && LoadKernel("c").has_value());
  EXPECT_FALSE(LoadKernel("b").has_value());
  EXPECT_EQ(Files().size(), 3u);
}

TEST_F(CudaKernelPrograms, ThreadsCompileEachSourceOnce) {
  const auto device = Device();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] { EXPECT_TRUE(device->Function(Source(i % 2), "f").ok()); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Compiled(), 2u);
}

}  // namespace
}  // namespace caesura::testing
