// SPDX-License-Identifier: Apache-2.0
// Reductions and SumTo give the CPU's numbers, however their elements are spread over threads; the
// same bits wherever the tensors lie.
#include <cmath>
#include <random>

#include "core/base/status_macros.h"
#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/ops/cuda/kernel_feeds.h"
#include "tests/core/providers/cuda/standin_cuda.h"

namespace caesura::testing {
namespace {

class CudaReduction : public StandinCuda {
 protected:
  static Result<Tensor> Run(const std::shared_ptr<Graph>& graph, const Tensor& x,
                            const ProviderList& providers) {
    ASSIGN_OR_RETURN(auto plan, TryPlan(graph, {x}, {}, providers));
    ExecutionState state(plan);
    ASSIGN_OR_RETURN(const Values got, Finish(state, {x}));
    return got[0].tensor();
  }

  // `launches`: 2 where parts are merged.
  void Compare(const std::string& op, DType dtype, const Shape& shape, const std::string& axes,
               uint64_t launches) {
    SCOPED_TRACE(op + " of " + DTypeName(dtype) + "[" + Dims(shape) + "], axes or shape " + axes);
    std::mt19937 random(5);
    const Tensor x = Random(dtype, shape, random);
    const auto rank = std::count(axes.begin(), axes.end(), ',') + (axes.empty() ? 0 : 1);
    const std::string domain = op == "SumTo" ? "ai.caesura." : "";
    const auto graph = GraphOf("(" + Declared("x", x) + ") => (y) <int64[" + std::to_string(rank) +
                               "] given = {" + axes + "}> { y = " + domain + op + " (x, given) }");
    ASSERT_NE(graph, nullptr);
    const auto cpu = MakeCpuProvider();
    if (cuda_ == nullptr) cuda_ = Provider();
    ASSERT_NE(cuda_, nullptr);
    const auto wanted = Run(graph, x, {cpu});
    const uint64_t before = Operations("kernel reduce") + Operations("kernel merge_parts");
    const auto got = Run(graph, x, {cuda_, cpu});
    if (!OnGpu()) {
      EXPECT_EQ(Operations("kernel reduce") + Operations("kernel merge_parts") - before, launches);
    }
    const auto again = Run(graph, Misaligned(x, *cuda_), {cuda_, cpu});
    ASSERT_TRUE(wanted.ok() && got.ok() && again.ok())
        << wanted.status().ToString() << got.status().ToString() << again.status().ToString();
    EXPECT_TRUE(SameBits(*got, *again));
    ASSERT_EQ(got->shape(), wanted->shape());
    ASSERT_EQ(got->dtype(), wanted->dtype());
    const double relative = dtype == DType::kFloat64   ? 1e-12
                            : dtype == DType::kFloat32 ? 1e-5
                            : dtype == DType::kFloat16 ? 2e-3
                                                       : 1e-2;
    const std::vector<double> a = got->ToVector<double>(), b = wanted->ToVector<double>();
    // The tolerance grows with the number of terms about 1.
    const double size = static_cast<double>(x.elements()) / std::max<size_t>(b.size(), 1);
    for (size_t i = 0; i < a.size(); ++i) {
      if (std::isinf(b[i])) EXPECT_EQ(a[i], b[i]);
      else ASSERT_NEAR(a[i], b[i], relative * std::max(std::fabs(b[i]), std::sqrt(size))) << i;
    }
  }

  std::shared_ptr<const ExecutionProvider> cuda_;
};

TEST_F(CudaReduction, AlongAnyAxes) {
  // Along the last axis FusedRows reduces: here it is of one element.
  Compare("ReduceSum", DType::kFloat32, Shape{6, 40, 8, 1}, "2", 1);
  Compare("ReduceSum", DType::kFloat32, Shape{6, 40, 9, 1}, "2", 1);
  Compare("ReduceSum", DType::kFloat32, Shape{6, 40, 8}, "1", 1);
  Compare("ReduceSum", DType::kFloat32, Shape{6, 10, 11}, "1", 1);
  Compare("ReduceSum", DType::kFloat32, Shape{6, 10, 3}, "0, 1", 1);
  Compare("ReduceSum", DType::kFloat32, Shape{6, 10, 16}, "0", 1);
  Compare("ReduceSum", DType::kFloat32, Shape{6, 4, 5, 8}, "0, 2", 1);
  Compare("ReduceSum", DType::kFloat32, Shape{6, 4, 5, 8}, "1, 3", 1);
  Compare("ReduceSum", DType::kFloat32, Shape{40, 1}, "1", 1);
  Compare("ReduceSum", DType::kFloat32, Shape{}, "", 1);
  for (const char* op : {"ReduceMax", "ReduceL2"}) {
    Compare(op, DType::kFloat32, Shape{6, 40, 9, 1}, "2", 1);
    Compare(op, DType::kFloat32, Shape{6, 40, 8}, "1", 1);
  }
  Compare("ReduceSum", DType::kFloat32, Shape{3, 0, 8}, "1", 1);
  Compare("ReduceMean", DType::kFloat32, Shape{3, 700, 1}, "1", 1);
  Compare("ReduceMin", DType::kFloat32, Shape{300, 17}, "0", 2);
}

// Fewer outputs than multiprocessors: parts of their elements, in rows and in columns.
TEST_F(CudaReduction, OfManyElementsUnderFewOutputs) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    Compare("ReduceMean", dtype, Shape{40000}, "0", 2);
    Compare("ReduceMean", dtype, Shape{2000, 24}, "0", 2);
  }
  Compare("ReduceSum", DType::kFloat32, Shape{3, 20001, 1}, "1", 2);
  Compare("ReduceSum", DType::kFloat32, Shape{2003, 21}, "0", 2);
  Compare("ReduceMax", DType::kFloat32, Shape{9, 300, 40}, "0, 1", 2);
}

TEST_F(CudaReduction, SumToWhatWasBroadcast) {
  Compare("SumTo", DType::kFloat32, Shape{8, 6, 32}, "1, 6, 32", 1);
  Compare("SumTo", DType::kFloat32, Shape{8, 6, 32}, "6, 32", 1);
  Compare("SumTo", DType::kBFloat16, Shape{8, 6, 32}, "8, 1, 32", 1);
  Compare("SumTo", DType::kFloat32, Shape{8, 6, 32}, "8, 6, 1", 1);
  Compare("SumTo", DType::kFloat32, Shape{300, 6, 32}, "1, 6, 32", 2);
  // Outputs enough for a thread to sum whole columns.
  Compare("SumTo", DType::kFloat32, Shape{17, 280000}, "1, 280000", 1);
}

}  // namespace
}  // namespace caesura::testing
