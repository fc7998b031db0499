// SPDX-License-Identifier: Apache-2.0
// Conv and ConvGrad on the device give the CPU's numbers, and the same bits from run to run.
#include <cmath>

#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/ops/cuda/conv_case.h"
#include "tests/core/ops/cuda/half_numbers.h"
#include "tests/core/providers/cuda/standin_cuda.h"

namespace caesura::testing {
namespace {

std::string Ints(const std::vector<int64_t>& values) {
  std::string out;
  for (int64_t value : values) out += (out.empty() ? "[" : ", ") + std::to_string(value);
  return out + "]";
}

std::string TextOf(const ConvCase& c, bool bias) {
  const ConvGeometry g = c.Geometry();
  const std::string how = " <kernel_shape = " + Ints(c.kernel) + ", strides = " + Ints(c.strides) +
                          ", dilations = " + Ints(c.dilations) + ", pads = " + Ints(c.pads) +
                          ", group = " + std::to_string(c.groups) + "> ";
  return "(" + TypeText(c.dtype, g.Src()) + "x, " + TypeText(c.dtype, g.Weights()) + "w, " +
         TypeText(c.dtype, Shape{c.outputs}) + "b, " + TypeText(c.dtype, g.Dst()) +
         "dy) => (y, dx, dw, db) { y = Conv" + how + (bias ? "(x, w, b)" : "(x, w)") +
         " dx, dw, db = ai.caesura.ConvGrad" + how + "(dy, x, w) }";
}

class CudaConv : public StandinCuda {
 protected:
  static Values RunOn(const ProviderList& providers, const std::string& text, const Values& feeds) {
    auto plan = TryPlan(GraphOf(text), feeds, {}, providers);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    if (!plan.ok()) return {};
    ExecutionState state(*plan);
    auto got = Finish(state, feeds);
    EXPECT_TRUE(got.ok()) << got.status().ToString();
    return got.ok() ? *got : Values();
  }
  void Compare(const ConvCase& c, bool bias, const std::shared_ptr<const ExecutionProvider>& cuda) {
    SCOPED_TRACE(c.name);
    const ConvGeometry g = c.Geometry();
    const Values feeds = {Numbers(c.dtype, g.Src(), 1), Numbers(c.dtype, g.Weights(), 2),
                          Numbers(c.dtype, Shape{c.outputs}, 3), Numbers(c.dtype, g.Dst(), 4)};
    const auto cpu = MakeCpuProvider();
    const std::string text = TextOf(c, bias);
    const Values wanted = RunOn({cpu}, text, feeds), got = RunOn({cuda, cpu}, text, feeds);
    EXPECT_TRUE(SameBits(RunOn({cuda, cpu}, text, feeds), got)) << "other bits in another run";
    // Sums in another order, rounded once, Y once more for its bias.
    ExpectClose(got, wanted, c.dtype == DType::kFloat32 ? 1e-6 : RoundingsOf(c.dtype, 4));
  }
};

TEST_F(CudaConv, ByCudnn) {
  const auto cuda = Provider();
  for (const ConvCase& c : ConvCases()) {
    const uint64_t before = Operations("cudnnBackendExecute");
    Compare(c, true, cuda);
    if (!OnGpu()) {
      EXPECT_EQ(Operations("cudnnBackendExecute") - before, 6u) << c.name;
    }
    Compare(c, false, cuda);
  }
}

// The CPU has it then.
TEST_F(CudaConv, WithoutCudnn) {
  CudaOptions options = Options();
  options.libraries.cudnn.clear();
  Compare(ConvCases()[0], true, Provider(options));
  EXPECT_EQ(Operations("cudnnBackendExecute"), 0u);
}

}  // namespace
}  // namespace caesura::testing
