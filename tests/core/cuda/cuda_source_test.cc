// SPDX-License-Identifier: Apache-2.0
// The CUDA that the library holds as text: it is that of the tree, and compilers take each file as
// it is.
#include "core/cuda/cuda_source.h"

#include <filesystem>
#include <fstream>

#include "core/cuda/kernel_program.h"
#include "tests/core/providers/cuda/standin_cuda.h"
#include "tests/temporary_folder.h"

namespace caesura::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kPrelude[] = "core/kernels/cuda/prelude.cuh";
constexpr char kRows[] = "core/kernels/cuda/row_reduce.cuh";  // it includes the prelude

std::string Read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t Times(const std::string& text, const std::string& part) {
  size_t out = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++out;
  return out;
}

std::vector<std::string> FilesOfTheTree() {
  std::vector<std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(kSourceFolder) / "core")) {
    if (entry.path().extension() == ".cuh")
      out.push_back(fs::relative(entry.path(), kSourceFolder).string());
  }
  return out;
}

class CudaSources : public StandinCuda {
 protected:
  void SetUp() override {
    if (!fs::exists(kSourceFolder))
      GTEST_SKIP() << "built elsewhere: there is no " << kSourceFolder;
    StandinCuda::SetUp();
  }
};

TEST_F(CudaSources, AreTheFilesOfTheTree) {
  std::vector<std::string> held;
  for (const CudaFile& file : CudaFiles()) {
    EXPECT_EQ(file.text, Read(fs::path(kSourceFolder) / file.path)) << file.path;
    held.push_back(file.path);
  }
  EXPECT_THAT(FilesOfTheTree(), ::testing::IsSubsetOf(held));
}

TEST_F(CudaSources, HoldEachIncludedFileOnce) {
  const std::string source = CudaMacros({{"COUNT", "1 +\n2"}}) + CudaInclude(kRows) +
                             CudaInclude(kPrelude) + "#include \"other.h\"\n" + "int last;\n";
  const std::string all = WithCudaFiles(source);
  EXPECT_THAT(all, StartsWith("#define COUNT 1 + 2\n#line 1 \"" + std::string(kRows) + "\"\n"));
  EXPECT_THAT(all, EndsWith("#line 4 \"caesura.cu\"\n#include \"other.h\"\nint last;\n"));
  EXPECT_EQ(Times(all, "struct bf16 {"), 1u);
  EXPECT_EQ(Times(all, "struct RowSum {"), 1u);
  EXPECT_LT(all.find("struct bf16 {"), all.find("struct RowSum {"));
  EXPECT_THAT(all, Not(HasSubstr("#include \"core/")));
}

// So a library with another text of an included file does not take up the code that was kept.
TEST_F(CudaSources, AreInTheKeyWithAllThatTheyInclude) {
  SKIP_ON_GPU();
  TemporaryFolder folder;
  ::setenv("CAESURA_PROGRAM_CACHE", folder.path("programs").c_str(), 1);
  const auto device = CudaDevice::Create(Unchecked()).value();
  const std::string source =
      CudaInclude(kRows) + "extern \"C\" __global__ void f(float* x) { *x = 1; }\n";
  EXPECT_TRUE(device->Function(source, "f").ok());
  std::vector<std::string> kept;
  for (const auto& file : fs::directory_iterator(folder.path("programs")))
    kept.push_back(Read(file.path()));
  ASSERT_EQ(kept.size(), 1u);
  for (const CudaFile& file : CudaFiles()) {
    const bool included = file.path == std::string(kPrelude) || file.path == std::string(kRows);
    // Only the lines that include others differ from the file's.
    const std::string text = file.text, whole = text.substr(text.rfind("#include \"core/") + 1);
    EXPECT_EQ(Times(kept[0], whole.substr(whole.find('\n'))) > 0, included) << file.path;
  }
}

// Errors name the file and its line.
TEST_F(CudaSources, TellWhereAnErrorIs) {
  SKIP_ON_GPU();
  const auto libraries = OpenCudaLibraries(Options().libraries).value();
  const std::string source = CudaInclude(kPrelude) + "\nwrong\n";
  const auto made = CompileKernel(*libraries, {WithCudaFiles(source), "sm_90"});
  EXPECT_THAT(made.status().message(), HasSubstr("caesura.cu(3): error"));
}

TEST_F(CudaSources, AreTakenByNvrtcAsTheyAre) {
  const auto libraries = OpenCudaLibraries(Options().libraries).value();
  for (const std::string& path : FilesOfTheTree()) {
    const auto made = CompileKernel(*libraries, {WithCudaFiles(CudaInclude(path)), "sm_90"});
    EXPECT_TRUE(made.ok()) << path << ": " << made.status().message();
  }
}

TEST_F(CudaSources, AreTakenByNvccAsTheyAre) {
  if (std::system("nvcc --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "there is no nvcc";
  TemporaryFolder folder;
  const std::string log = folder.path("log");
  for (const std::string& path : FilesOfTheTree()) {
    const std::string command = "cd '" + std::string(kSourceFolder) +
                                "' && nvcc -c -arch=sm_90 -std=c++17 -x cu -I . -o '" +
                                folder.path("object") + "' '" + path + "' > '" + log + "' 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << path << ": " << Read(log);
  }
}

}  // namespace
}  // namespace caesura::testing
