// SPDX-License-Identifier: Apache-2.0
// The gradient cases in halves with the CUDA provider on its stand-ins against double on the CPU.
// An eighth of them; all of them with CAESURA_LONG=1.
#include <cstdlib>

#include "core/providers/cpu_provider.h"
#include "graph_transforms/pipeline.h"
#include "tests/core/providers/cuda/standin_cuda.h"
#include "tests/gradients/gradient_check.h"

namespace caesura::testing {
namespace {

class CudaGradientSweep : public StandinCuda {
 protected:
  // As GradientSweep has it on the CPU: eight roundings on the way, relative to the largest entry.
  void Compare(DType narrow, double tolerance, const std::vector<std::string>& always) {
    const ProviderList providers = {Provider(), MakeCpuProvider()};
    const size_t every = std::getenv("CAESURA_LONG") != nullptr ? 1 : 8;
    const std::vector<GradientCase> cases = AllGradientCases();
    int compared = 0, on_device = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      const GradientCase& c = cases[i];
      const bool wanted = std::find(always.begin(), always.end(), c.name) != always.end();
      if (!c.no_double.empty() || (i % every != 0 && !wanted)) continue;
      SCOPED_TRACE(c.name);
      const uint64_t before = Operations("");
      Result<CaseRun> found = RunForward(c, narrow, narrow, providers);
      if (!found.ok()) continue;  // the ops have no such type
      const Status status = RunBackward(c, narrow, &*found, narrow, StepPasses(), providers);
      ASSERT_TRUE(status.ok()) << status.ToString();
      CaseRun exact = RunForward(c, DType::kFloat64, narrow).value();
      ASSERT_TRUE(RunBackward(c, DType::kFloat64, &exact, narrow).ok());
      for (size_t k = 0; k < exact.gradients.size(); ++k) {
        const double scale = ScaleOf(exact.gradients[k]);
        for (size_t e = 0; e < exact.gradients[k].size(); ++e)
          EXPECT_NEAR(found->gradients[k][e], exact.gradients[k][e], tolerance * scale)
              << "d" << found->xs[k] << "[" << e << "]";
      }
      ++compared;
      on_device += Operations("") > before;
    }
    if (OnGpu()) return;
    std::printf("%d cases in %s, %d of them with work on the device\n", compared, DTypeName(narrow),
                on_device);
    EXPECT_GT(on_device, compared / 2);
  }
};

const std::vector<std::string> kAlways = {"Attention",
                                          "AttentionCausal",
                                          "AttentionGrouped",
                                          "AttentionPacked",
                                          "AttentionMask",
                                          "Conv",
                                          "MaxPool",
                                          "MaxPoolDilated",
                                          "AveragePool",
                                          "AveragePoolPadCounted",
                                          "GlobalAveragePool",
                                          "GlobalMaxPool",
                                          "BatchNormalization",
                                          "BatchNormalizationTrained",
                                          "BatchNormalizationTraining",
                                          "SoftmaxCrossEntropyLoss",
                                          "SoftmaxCrossEntropyLossLogProb"};

TEST_F(CudaGradientSweep, BFloat16MatchesDouble) { Compare(DType::kBFloat16, 8.0 / 512, kAlways); }
TEST_F(CudaGradientSweep, Float16MatchesDouble) { Compare(DType::kFloat16, 8.0 / 4096, kAlways); }

}  // namespace
}  // namespace caesura::testing
