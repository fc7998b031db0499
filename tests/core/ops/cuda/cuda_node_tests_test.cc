// SPDX-License-Identifier: Apache-2.0
// The ONNX node tests with the CUDA provider on its stand-ins give the CPU's results. A fourth of
// them, and all of pools and batch norms; all with CAESURA_LONG=1, and all that are in the folder
// CAESURA_NODE_TESTS.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/providers/cpu_provider.h"
#include "tests/core/providers/cuda/standin_cuda.h"
#include "tests/core/runtime/node_test.h"
#include "tests/test_paths.h"

namespace caesura::testing {
namespace {

// Floats within what the node tests themselves allow, more for halves; all else bit for bit.
bool IsClose(const RuntimeValue& got, const RuntimeValue& wanted) {
  if (!got.is_tensor() || !wanted.is_tensor() || !IsDifferentiable(wanted.tensor().dtype()))
    return SameResult(got, wanted);
  const Tensor &a = got.tensor(), &b = wanted.tensor();
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  const double relative = a.dtype() == DType::kFloat64   ? 1e-7
                          : a.dtype() == DType::kFloat32 ? 1e-3
                          : a.dtype() == DType::kFloat16 ? 5e-3
                                                         : 2e-2;
  const std::vector<double> x = a.ToVector<double>(), y = b.ToVector<double>();
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(y[i])
            ? !std::isnan(x[i])
            : x[i] != y[i] && !(std::fabs(x[i] - y[i]) <= 1e-5 + relative * std::fabs(y[i])))
      return false;
  }
  return true;
}

// Ops all of whose cases run on the device. A few integers are taken for a shape, and stay on the
// host.
bool IsOfTheDevice(const std::string& name) {
  if (name == "test_maxpool_2d_uint8") return false;
  for (const char* op : {"test_maxpool_", "test_averagepool_", "test_globalaveragepool",
                         "test_globalmaxpool", "test_batchnorm_"}) {
    if (name.starts_with(op)) return true;
  }
  return false;
}

class CudaNodeTests : public StandinCuda {};

TEST_F(CudaNodeTests, GiveTheCpusResults) {
  const char* given = std::getenv("CAESURA_NODE_TESTS");
  const std::string folder = given != nullptr ? given : kNodeTestsFolder;
  const auto there = PosixFileSystem().List(folder);
  if (!there.ok()) GTEST_SKIP() << "no node tests in " << folder;
  const auto cpu = MakeCpuProvider();
  const auto cuda = Provider();
  ASSERT_NE(cuda, nullptr);
  const bool all = given != nullptr || std::getenv("CAESURA_LONG") != nullptr;
  const size_t every = all ? 1 : 4;
  int run = 0, on_device = 0;
  for (size_t i = 0; i < there->size(); ++i) {
    const std::string& name = (*there)[i];
    if (i % every != 0 && !IsOfTheDevice(name)) continue;
    SCOPED_TRACE(name);
    if (name.find("image_decoder") != std::string::npos) continue;
    const auto wanted = RunNodeTest(folder + "/" + name, {cpu}).results;
    const uint64_t before = Operations("kernel ") + Operations("cublasLtMatmul");
    const auto got = RunNodeTest(folder + "/" + name, {cuda, cpu}, false).results;
    if (!wanted.ok()) continue;
    EXPECT_TRUE(got.ok()) << got.status().ToString();
    if (!got.ok()) continue;
    ASSERT_EQ(got->size(), wanted->size());
    for (size_t o = 0; o < got->size(); ++o)
      EXPECT_TRUE(IsClose((*got)[o], (*wanted)[o])) << "output " << o;
    ++run;
    const bool is_on_device = Operations("kernel ") + Operations("cublasLtMatmul") > before;
    on_device += is_on_device;
    EXPECT_TRUE(is_on_device || !IsOfTheDevice(name) || OnGpu());
  }
  EXPECT_GT(run, 0);
  if (OnGpu()) return;
  std::printf("%d cases as on the CPU, %d of them with kernels on the device\n", run, on_device);
  EXPECT_GT(on_device, run / 3);
}

}  // namespace
}  // namespace caesura::testing
