// SPDX-License-Identifier: Apache-2.0
// Attention of halves and its gradient on the device give the CPU's numbers: by cuDNN where it
// takes them, else by kernels of caesura's own.
#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/ops/cuda/attention_case.h"
#include "tests/core/ops/cuda/half_numbers.h"
#include "tests/core/providers/cuda/standin_cuda.h"
#include "tests/test_paths.h"

namespace caesura::testing {
namespace {

class CudaAttention : public StandinCuda {
 protected:
  // Y, dQ, dK and dV.
  static Values RunOn(const ProviderList& providers, const std::string& text, const Values& feeds) {
    const auto graph = GraphOf(text);
    auto plan = TryPlan(graph, feeds, {}, providers);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    if (!plan.ok()) return {};
    for (const PlanStep& step : (*plan)->steps()) {
      if (step.kind != PlanStep::Kind::kCompute || providers.size() == 1) continue;
      EXPECT_FALSE(step.provider->device().is_host()) << step.node->Label();
    }
    ExecutionState state(*plan);
    auto got = Finish(state, feeds);
    EXPECT_TRUE(got.ok()) << got.status().ToString();
    return got.ok() ? *got : Values();
  }

  // `mask`: "" or a type text. Returns what the device gave.
  Values Compare(const AttentionCase& c, std::shared_ptr<const ExecutionProvider> cuda,
                 const std::string& attributes = "", const RuntimeValue* mask = nullptr) {
    SCOPED_TRACE(c.name);
    std::string how = "nan_rows = 1" + attributes;
    if (c.causal) how += ", is_causal = 1";
    if (c.scale != 0) how += ", scale = " + std::to_string(c.scale);
    if (c.packed)
      how += ", q_num_heads = " + std::to_string(c.heads) +
             ", kv_num_heads = " + std::to_string(c.key_heads);
    const std::string m = mask != nullptr ? "m" : "";
    std::string text = "(" + TypeText(c.dtype, c.q()) + "q, " + TypeText(c.dtype, c.k()) + "k, " +
                       TypeText(c.dtype, c.v()) + "v, " + TypeText(c.dtype, c.y()) + "dy";
    Values feeds = {Numbers(c.dtype, c.q(), 1), Numbers(c.dtype, c.k(), 2),
                    Numbers(c.dtype, c.v(), 3), Numbers(c.dtype, c.y(), 4)};
    if (mask != nullptr) {
      text += ", " + TypeText(mask->tensor().dtype(), mask->tensor().shape()) + "m";
      feeds.push_back(*mask);
    }
    text += ") => (y, dq, dk, dv) { y, , , , lse = ai.caesura.AttentionTraining <" + how +
            "> (q, k, v, " + m + ") dq, dk, dv = ai.caesura.AttentionGrad <" + how +
            "> (dy, q, k, v, " + m + ", y, lse) }";
    const auto cpu = MakeCpuProvider();
    const Values wanted = RunOn({cpu}, text, feeds), got = RunOn({cuda, cpu}, text, feeds);
    EXPECT_TRUE(SameBits(RunOn({cuda, cpu}, text, feeds), got)) << "other bits in another run";
    // Y is rounded once, P and dS once each before the products that the gradients are.
    ExpectClose(got, wanted, RoundingsOf(c.dtype, 8));
    return got;
  }
  uint64_t Plans() const { return Operations("cudnnBackendExecute"); }
  void Refuse(int plans) {
    void* cudnn = dlopen(kStandinCudnn, RTLD_NOW);
    reinterpret_cast<decltype(standin_cudnn_refuse)*>(dlsym(cudnn, "standin_cudnn_refuse"))(plans);
  }
};

TEST_F(CudaAttention, ByCudnn) {
  const auto cuda = Provider();
  for (const AttentionCase& c : FusedAttentionCases()) {
    const uint64_t before = Plans();
    Compare(c, cuda);
    if (!OnGpu()) {
      EXPECT_EQ(Plans() - before, 4u) << c.name;
    }
  }
}

TEST_F(CudaAttention, WithoutCudnn) {
  CudaOptions options = Options();
  options.libraries.cudnn.clear();
  const auto cuda = Provider(options);
  for (const AttentionCase& c : FusedAttentionCases()) Compare(c, cuda);
  EXPECT_EQ(Plans(), 0u);
}

// Neither a head of 4 elements nor a mask has a plan.
TEST_F(CudaAttention, BesideCudnn) {
  const auto cuda = Provider();
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    Compare({.name = "Narrow", .dtype = dtype, .size = 4, .value_size = 4, .causal = true}, cuda);
    Compare({.name = "Window", .dtype = dtype}, cuda, ", left_window_size = 2");
    const RuntimeValue floats = Numbers(dtype, Shape{6, 6}, 5);
    Compare({.name = "FloatMask", .dtype = dtype}, cuda, "", &floats);
    RuntimeValue bools = Tensor::Zeros(DType::kBool, Shape{2, 1, 6, 6});
    for (int64_t e = 0; e < 72; ++e) bools.tensor().data<bool>()[e] = e % 5 != 1;
    Compare({.name = "BoolMask", .dtype = dtype, .heads = 4}, cuda, "", &bools);
  }
  EXPECT_EQ(Plans(), 0u);
}

TEST_F(CudaAttention, WherePlansAreRefused) {
  SKIP_ON_GPU();
  Refuse(1 << 20);
  ::setenv("CAESURA_VERBOSE", "1", 1);
  ::testing::internal::CaptureStderr();
  Compare(FusedAttentionCases()[1], Provider());
  const std::string told = ::testing::internal::GetCapturedStderr();
  ::unsetenv("CAESURA_VERBOSE");
  Refuse(0);
  EXPECT_EQ(Plans(), 0u);
  for (const char* node : {"Attention", "AttentionGrad"})
    EXPECT_THAT(told, ::testing::ContainsRegex(std::string("caesura: .*") + node +
                                               "[^\n]*: cuDNN takes no plan like this: status "));
}

}  // namespace
}  // namespace caesura::testing
