// SPDX-License-Identifier: Apache-2.0
// Pad, PadGrad, SliceGrad and GatherElements give the CPU's bits.
#include <random>

#include "core/base/status_macros.h"
#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/ops/cuda/kernel_feeds.h"
#include "tests/core/providers/cuda/standin_cuda.h"

namespace caesura::testing {
namespace {

class CudaPlacement : public StandinCuda {
 protected:
  static Result<Values> Run(const std::string& body, const Values& feeds,
                            const ProviderList& providers) {
    ASSIGN_OR_RETURN(auto plan, TryPlan(GraphOf(body), feeds, {}, providers));
    ExecutionState state(plan);
    return Finish(state, feeds);
  }
  void Compare(const std::string& body, const Values& feeds) {
    SCOPED_TRACE(body);
    const auto cpu = MakeCpuProvider();
    if (cuda_ == nullptr) cuda_ = Provider();
    ASSERT_NE(cuda_, nullptr);
    const auto wanted = Run(body, feeds, {cpu});
    ASSERT_TRUE(wanted.ok()) << wanted.status().ToString();
    const uint64_t before = Operations("kernel ");
    const auto got = Run(body, feeds, {cuda_, cpu});
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    if (!OnGpu()) {
      EXPECT_GT(Operations("kernel "), before);
    }
    EXPECT_TRUE(SameBits(*got, *wanted));
  }

  std::shared_ptr<const ExecutionProvider> cuda_;
  std::mt19937 random_{5};
};

TEST_F(CudaPlacement, PadsByAConstant) {
  const struct {
    Shape shape;
    const char* pads;
  } cases[] = {{Shape{3, 5}, "{1, 2, 0, 3}"},
               {Shape{3, 5}, "{-1, 2, 1, -3}"},
               {Shape{3, 5}, "{-3, 0, 2, 0}"},
               {Shape{4}, "{0, 0}"},
               {Shape{2, 3, 4}, "{0, 1, 2, 1, 0, 4}"}};
  for (const auto& c : cases) {
    const std::string count = std::to_string(2 * c.shape.rank());
    for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
      const Tensor x = Random(dtype, c.shape, random_), value = Random(dtype, Shape{1}, random_);
      const std::string pads = " <int64[" + count + "] pads = " + c.pads + "> ";
      Compare("(" + Declared("x", x) + ") => (y)" + pads + "{ y = Pad (x, pads) }", {x});
      Compare("(" + Declared("x", x) + ", " + Declared("value", value) + ") => (y)" + pads +
                  "{ y = Pad (x, pads, value) }",
              {x, value});
    }
  }
  Compare("(bool[3] x) => (y) <int64[2] pads = {1, 2}> { y = Pad (x, pads) }",
          {Tensor::Of<bool>({3}, {true, false, true})});
  Compare(
      "(int64[2, 2] x, int64[1] value) => (y) <int64[2] pads = {1, 2}, int64[1] axes = {1}> "
      "{ y = Pad (x, pads, value, axes) }",
      {Tensor::Of<int64_t>({2, 2}, {1, 2, 3, 4}), Tensor::Of<int64_t>({1}, {7})});
}

TEST_F(CudaPlacement, PadsInTheOtherModes) {
  for (const char* mode : {"reflect", "edge", "wrap"}) {
    for (const char* pads : {"{1, 2, 0, 3}", "{4, -1, 5, 7}", "{-1, 0, -1, 0}"}) {
      const Tensor x = Random(DType::kFloat32, Shape{3, 5}, random_);
      Compare("(" + Declared("x", x) + ") => (y) <int64[4] pads = " + pads +
                  "> { y = Pad <mode = \"" + mode + "\"> (x, pads) }",
              {x});
    }
  }
}

TEST_F(CudaPlacement, Gradients) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    const Tensor padded = Random(dtype, Shape{4, 10}, random_),
                 cropped = Random(dtype, Shape{3, 4}, random_),
                 slice = Random(dtype, Shape{2, 3}, random_);
    Compare("(" + Declared("dy", padded) +
                ") => (dx) <int64[2] shape = {3, 5}, int64[4] pads = {1, 2, 0, 3}> "
                "{ dx = ai.caesura.PadGrad (dy, shape, pads) }",
            {padded});
    Compare("(" + Declared("dy", cropped) +
                ") => (dx) <int64[2] shape = {3, 5}, int64[4] pads = {-1, 2, 1, -3}> "
                "{ dx = ai.caesura.PadGrad (dy, shape, pads) }",
            {cropped});
    Compare("(" + Declared("dy", slice) +
                ") => (dx) <int64[2] shape = {4, 9}, int64[2] starts = {3, 1}, int64[2] ends = "
                "{0, 8}, int64[2] axes = {0, 1}, int64[2] steps = {-2, 3}> "
                "{ dx = ai.caesura.SliceGrad (dy, shape, starts, ends, axes, steps) }",
            {slice});
  }
}

TEST_F(CudaPlacement, GathersElements) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    const Tensor x = Random(dtype, Shape{3, 4, 5}, random_);
    const Tensor along = Tensor::Of<int64_t>({3, 2, 5}, [] {
      std::vector<int64_t> out;
      for (int64_t i = 0; i < 30; ++i) out.push_back(i * 7 % 8 - 4);
      return out;
    }());
    const std::string inputs = "(" + Declared("x", x) + ", " + Declared("at", along) + ") => (y) ";
    Compare(inputs + "{ y = GatherElements <axis = 1> (x, at) }", {x, along});
    const Tensor first = Tensor::Of<int32_t>({2, 4, 1}, {0, 1, 2, -1, -2, -3, 0, 2});
    Compare("(" + Declared("x", x) + ", int32[2, 4, 1] at) => (y) { y = GatherElements (x, at) }",
            {x, first});
  }
}

TEST_F(CudaPlacement, AnIndexOutsideIsReported) {
  const auto cuda = Provider(Unchecked());
  const auto got =
      Run("(float[4] x, int64[2] at) => (y) { y = GatherElements (x, at) }",
          {Ramp(Shape{4}), Tensor::Of<int64_t>({2}, {0, 4})}, {cuda, MakeCpuProvider()});
  EXPECT_THAT(got.status().message(), ::testing::HasSubstr("an index is outside [-4, 4)"));
}

}  // namespace
}  // namespace caesura::testing
