// SPDX-License-Identifier: Apache-2.0
// Batch norms and their gradients on the device give the CPU's numbers, however a channel's
// elements are spread over threads; the same bits wherever the tensors lie.
#include <cmath>

#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/ops/cuda/half_numbers.h"
#include "tests/core/ops/cuda/kernel_feeds.h"
#include "tests/core/providers/cuda/standin_cuda.h"

namespace caesura::testing {
namespace {

class CudaBatchNorm : public StandinCuda {
 protected:
  static Values RunOn(const ProviderList& providers, const std::shared_ptr<Graph>& graph,
                      const Values& feeds) {
    auto plan = TryPlan(graph, feeds, {}, providers);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    if (!plan.ok()) return {};
    for (const PlanStep& step : (*plan)->steps()) {
      if (step.kind != PlanStep::Kind::kCompute) continue;
      EXPECT_EQ(step.provider->device(), providers[0]->device()) << step.node->op_type();
    }
    ExecutionState state(*plan);
    auto got = Finish(state, feeds);
    EXPECT_TRUE(got.ok()) << got.status().ToString();
    return got.ok() ? *got : Values();
  }

  // All three ops, and BatchNormalization in training mode; parameters and statistics of a dtype of
  // their own. X is far from 0.
  void Compare(DType dtype, DType other, const Shape& shape) {
    SCOPED_TRACE(std::string(DTypeName(dtype)) + "[" + Dims(shape) + "]");
    std::mt19937 random(6);
    const Shape channel{shape.rank() < 2 ? 1 : shape[1]};
    Tensor x = Random(dtype, shape, random);
    DispatchFloat(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (int64_t i = 0; i < x.elements(); ++i)
        x.data<T>()[i] = static_cast<T>(static_cast<float>(x.data<T>()[i]) + 5);
    });
    const Tensor dy = Random(dtype, shape, random), scale = Random(other, channel, random),
                 bias = Random(other, channel, random), mean = Random(other, channel, random);
    Tensor variance = Random(other, channel, random);
    DispatchFloat(other, [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (int64_t i = 0; i < variance.elements(); ++i)
        variance.data<T>()[i] = static_cast<T>(0.5f + 0.01f * static_cast<float>(i));
    });
    const auto graph = GraphOf(
        "(" + Declared("x", x) + ", " + Declared("dy", dy) + ", " + Declared("s", scale) + ", " +
        Declared("b", bias) + ", " + Declared("m", mean) + ", " + Declared("v", variance) +
        ") => (y, rm, rv, sm, si, dx, ds, db, z, zm, zv, w) {"
        " y, rm, rv, sm, si = ai.caesura.BatchNormalizationTraining <momentum = 0.8>"
        "   (x, s, b, m, v)"
        " dx, ds, db = ai.caesura.BatchNormalizationGrad (dy, x, s, sm, si)"
        " z, zm, zv = BatchNormalization <training_mode = 1, epsilon = 0.01> (x, s, b, m, v)"
        " w = BatchNormalization (x, s, b, m, v) }");
    ASSERT_NE(graph, nullptr);
    if (cuda_ == nullptr) cuda_ = Provider();
    const auto cpu = MakeCpuProvider();
    Values feeds = {x, dy, scale, bias, mean, variance};
    const Values wanted = RunOn({cpu}, graph, feeds), got = RunOn({cuda_, cpu}, graph, feeds);
    feeds[0] = Misaligned(x, *cuda_);
    feeds[1] = Misaligned(dy, *cuda_);
    EXPECT_TRUE(SameBits(RunOn({cuda_, cpu}, graph, feeds), got)) << "other bits elsewhere";
    // Statistics and gradients go on from rounded ones; sums of float32 are in another order.
    ExpectClose(got, wanted,
                dtype == DType::kFloat64   ? 1e-12
                : dtype == DType::kFloat32 ? 1e-5
                                           : RoundingsOf(dtype, 3));
  }

 private:
  std::shared_ptr<const ExecutionProvider> cuda_;
};

TEST_F(CudaBatchNorm, OfAllTypes) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat16, DType::kBFloat16})
    Compare(dtype, dtype, Shape{3, 2, 4, 4});
  Compare(DType::kBFloat16, DType::kFloat32, Shape{3, 2, 4, 4});
  Compare(DType::kFloat16, DType::kFloat32, Shape{3, 2, 4, 4});
}

TEST_F(CudaBatchNorm, OfAllShapes) {
  for (const Shape& shape : {
           Shape{3, 2, 4, 4},  // whole vectors
           Shape{3, 2, 5, 3},  // none
           Shape{5, 40},       // channels side by side: two blocks of them, in vectors
           Shape{5, 33},       // without vectors
           Shape{70, 3},       // in parts
           Shape{40},          // one channel
           Shape{1, 3, 2, 3},  // fewer elements than a warp has threads
           Shape{3, 1, 700},   // parts that end within a row
           Shape{2, 300, 4},   // more channels than twice the multiprocessors: no parts
       })
    Compare(DType::kFloat32, DType::kFloat32, shape);
}

// More than the cache is to keep of a channel.
TEST_F(CudaBatchNorm, OfLongChannels) {
  Compare(DType::kFloat32, DType::kFloat32, Shape{2, 270, 64});
  Compare(DType::kFloat32, DType::kFloat32, Shape{2, 2, 9001});
}

}  // namespace
}  // namespace caesura::testing
