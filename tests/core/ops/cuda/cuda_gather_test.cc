// SPDX-License-Identifier: Apache-2.0
// Gather and its gradient give the CPU's bits: slices that meet are added in the indices' order.
#include <random>

#include "core/base/status_macros.h"
#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/ops/cuda/kernel_feeds.h"
#include "tests/core/providers/cuda/standin_cuda.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

// Indices in [-dim, dim), a third of them equal.
Tensor Indices(DType dtype, int64_t count, int64_t dim, std::mt19937& random) {
  Tensor out = Tensor::Zeros(dtype, Shape{count});
  DispatchDType<int32_t, int64_t>(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < count; ++i) {
      const auto any = static_cast<int64_t>(random() % static_cast<uint64_t>(2 * dim)) - dim;
      out.data<T>()[i] = static_cast<T>(random() % 3 == 0 ? dim / 2 : any);
    }
  });
  return out;
}

class CudaGather : public StandinCuda {
 protected:
  // `misaligned`: the first feed is on the device, one element after an aligned address.
  void Compare(const std::string& body, const Values& feeds, const char* kernel,
               bool misaligned = false) {
    const auto graph = GraphOf(body);
    ASSERT_NE(graph, nullptr);
    const auto cpu = MakeCpuProvider();
    const auto wanted = Run(graph, feeds, {cpu});
    ASSERT_TRUE(wanted.ok()) << wanted.status().ToString();
    if (cuda_ == nullptr) cuda_ = Provider();
    ASSERT_NE(cuda_, nullptr);
    Values given = feeds;
    if (misaligned) given[0] = Misaligned(feeds[0].tensor(), *cuda_);
    const uint64_t before = Operations(kernel);
    const auto got = Run(graph, given, {cuda_, cpu});
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    if (!OnGpu()) {
      EXPECT_EQ(Operations(kernel) - before, feeds[1].tensor().elements() > 0 ? 1u : 0u);
    }
    EXPECT_TRUE(SameBits(*got, *wanted));
  }
  static Result<Values> Run(const std::shared_ptr<Graph>& graph, const Values& feeds,
                            const ProviderList& providers) {
    ASSIGN_OR_RETURN(auto plan, TryPlan(graph, feeds, {}, providers));
    ExecutionState state(plan);
    return Finish(state, feeds);
  }

  struct Case {
    Shape data;
    int axis;
    int64_t count;
    DType dtype = DType::kFloat32, index = DType::kInt64;
    bool misaligned = false;
  };
  static Shape SlicesOf(const Case& c) {
    std::vector<int64_t> dims(c.data.begin(), c.data.end());
    dims[static_cast<size_t>(c.axis)] = c.count;
    return Shape(dims);
  }
  static std::string Axis(const Case& c) { return " <axis = " + std::to_string(c.axis) + "> "; }

  void CompareGradients(const Case& c) {
    SCOPED_TRACE(c.data.ToString() + ", axis " + std::to_string(c.axis) + ", " +
                 std::to_string(c.count) + " indices, " + DTypeName(c.dtype));
    std::mt19937 random(3);
    const Tensor dy = Random(c.dtype, SlicesOf(c), random),
                 at = Indices(c.index, c.count, c.data[c.axis], random),
                 base = Random(c.dtype, c.data, random);
    const std::string constants = " <int64[" + std::to_string(c.data.rank()) + "] shape = {" +
                                  Dims(c.data) + "}> ",
                      inputs = "(" + Declared("dy", dy) + ", " + Declared("at", at),
                      result = ") => (" + Declared("dx", base) + ")" + constants;
    const char* kernel = "kernel sort_indices";
    Compare(inputs + result + "{ dx = ai.caesura.GatherGrad" + Axis(c) + "(dy, at, shape) }",
            {dy, at}, kernel, c.misaligned);
    // A base that others keep, and one in whose place the sums may be.
    Compare(inputs + ", " + Declared("base", base) + result + "{ dx = ai.caesura.GatherGrad" +
                Axis(c) + "(dy, at, shape, base) }",
            {dy, at, base}, kernel, c.misaligned);
    Compare(inputs + ", " + Declared("base", base) + result +
                "{ minus = Neg (base)\n dx = ai.caesura.GatherGrad" + Axis(c) +
                "(dy, at, shape, minus) }",
            {dy, at, base}, kernel, c.misaligned);
  }

  std::shared_ptr<const ExecutionProvider> cuda_;
};

TEST_F(CudaGather, GradientsHaveTheCpusBits) {
  const Case cases[] = {
      {.data = Shape{50, 8}, .axis = 0, .count = 40},
      {.data = Shape{50, 7}, .axis = 0, .count = 40},
      {.data = Shape{1, 12}, .axis = 0, .count = 70},
      {.data = Shape{2, 5, 3}, .axis = 1, .count = 50},
      {.data = Shape{3, 4, 8}, .axis = 1, .count = 33, .index = DType::kInt32},
      {.data = Shape{5, 6}, .axis = 1, .count = 45},
      {.data = Shape{9, 1100}, .axis = 0, .count = 30},
      {.data = Shape{9, 4}, .axis = 0, .count = 0},
      {.data = Shape{20, 8}, .axis = 0, .count = 30, .misaligned = true},
      {.data = Shape{20, 8}, .axis = 0, .count = 30, .dtype = DType::kBFloat16, .misaligned = true},
  };
  for (const Case& c : cases) CompareGradients(c);
  for (DType dtype : {DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    CompareGradients({.data = Shape{11, 16}, .axis = 0, .count = 60, .dtype = dtype});
    CompareGradients({.data = Shape{11, 3}, .axis = 0, .count = 60, .dtype = dtype});
  }
}

// More than a block's shared memory takes at a time; more than there are classes of rows, and more
// rows in a class than have their numbers in shared memory.
TEST_F(CudaGather, GradientsOfManyIndicesAndOfManyRows) {
  CompareGradients({.data = Shape{5, 2}, .axis = 0, .count = 20000});
  CompareGradients({.data = Shape{3000, 4}, .axis = 0, .count = 100});
  CompareGradients({.data = Shape{270000}, .axis = 0, .count = 70});
}

TEST_F(CudaGather, AnIndexOutsideIsReported) {
  const auto cuda = Provider(Unchecked());
  const auto cpu = MakeCpuProvider();
  const auto graph = GraphOf(
      "(float[3, 2] dy, int64[3] at) => (float[4, 2] dx) <int64[2] shape = {4, 2}> "
      "{ dx = ai.caesura.GatherGrad <axis = 0> (dy, at, shape) }");
  ASSERT_NE(graph, nullptr);
  for (int64_t wrong : {4, -5}) {
    const auto got =
        Run(graph, {Ramp(Shape{3, 2}), Tensor::Of<int64_t>({3}, {0, wrong, 1})}, {cuda, cpu});
    EXPECT_THAT(got.status().message(), HasSubstr("an index is outside [-4, 4)"));
  }
  const auto elements = GraphOf(
      "(float[4, 2] x, int64[1, 2] at) => (float[1, 2] y) { y = GatherElements <axis = 0> (x, at) "
      "}");
  ASSERT_NE(elements, nullptr);
  for (int64_t wrong : {4, -5}) {
    const auto got =
        Run(elements, {Ramp(Shape{4, 2}), Tensor::Of<int64_t>({1, 2}, {0, wrong})}, {cuda, cpu});
    EXPECT_THAT(got.status().message(), HasSubstr("outside [-4, 4)"));
  }
}

TEST_F(CudaGather, GathersInPiecesAndByElement) {
  const Case cases[] = {
      {.data = Shape{50, 8}, .axis = 0, .count = 40},
      {.data = Shape{50, 8}, .axis = 0, .count = 40, .misaligned = true},
      {.data = Shape{3, 10, 6}, .axis = 1, .count = 40, .index = DType::kInt32},
      {.data = Shape{7, 10, 16}, .axis = 1, .count = 4, .dtype = DType::kBFloat16},
      {.data = Shape{7, 10, 4}, .axis = 1, .count = 4, .dtype = DType::kFloat64},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.data.ToString());
    std::mt19937 random(4);
    const Tensor x = Random(c.dtype, c.data, random),
                 at = Indices(c.index, c.count, c.data[c.axis], random);
    Compare("(" + Declared("x", x) + ", " + Declared("at", at) + ") => (y) { y = Gather" + Axis(c) +
                "(x, at) }",
            {x, at}, "kernel gather", c.misaligned);
  }
}

}  // namespace
}  // namespace caesura::testing
