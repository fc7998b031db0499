// SPDX-License-Identifier: Apache-2.0
// Sums over rows, which blocks add up together: the CPU's numbers, one launch, and the same bits
// in each order of blocks.
#include <cmath>
#include <cstring>

#include "core/plan/device_constants.h"
#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/providers/cuda/standin_cuda.h"

namespace caesura::testing {
namespace {

class CudaRowSums : public StandinCuda {
 protected:
  void SetUp() override { StandinCuda::SetUp(); }

  static Tensor Halves(const Shape& shape) {
    const std::vector<float> from = ToFloats(Ramp(shape));
    Tensor out = Tensor::Zeros(DType::kBFloat16, shape);
    for (size_t i = 0; i < from.size(); ++i) out.data<BFloat16>()[i] = BFloat16(from[i]);
    return out;
  }

  void Compare(const std::string& body, const Values& feeds, double tolerance) {
    const auto graph = GraphOf(body);
    const auto cpu = MakeCpuProvider(), cuda = Provider();
    const Values wanted = RunPlan(PlanOf(graph, feeds, {}, {cpu}), feeds);
    const auto plan = PlanOf(graph, feeds, {}, {cuda, cpu});
    const uint64_t before = Operations("kernel ");
    const Values got = RunPlan(plan, feeds);
    if (!OnGpu()) {
      EXPECT_EQ(Operations("kernel ") - before, 1u);
    }
    for (int run = 0; run < 3; ++run) EXPECT_TRUE(SameBits(RunPlan(plan, feeds), got));
    // One element after an aligned address, elements move by themselves.
    const Tensor& x = feeds[0].tensor();
    const Tensor longer = Tensor::Zeros(x.dtype(), Shape{x.elements() + 1});
    const size_t element = DTypeSize(x.dtype());
    std::memcpy(longer.data<char>() + element, x.raw(), x.bytes());
    Values moved = feeds;
    moved[0] = Tensor(x.dtype(), x.shape(), CopyToDevice(longer, *cuda).value().buffer(), element);
    EXPECT_TRUE(SameBits(RunPlan(PlanOf(graph, moved, {}, {cuda, cpu}), moved), got));
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t k = 0; k < got.size(); ++k) {
      const auto a = got[k].tensor().ToVector<double>(), b = wanted[k].tensor().ToVector<double>();
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i)
        ASSERT_NEAR(a[i], b[i], tolerance * std::max(1.0, std::abs(b[i])))
            << "output " << k << " at " << i;
    }
  }
};

// Fewer rows than blocks, a last group of blocks that is not full, and more rows than blocks.
TEST_F(CudaRowSums, OfAnyNumberOfRows) {
  for (int rows : {2, 17, 300, 700}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    const std::string n = std::to_string(rows);
    Compare("(float[" + n +
                ", 40] x) => (float[40] y) <int64[1] shape = {40}> "
                "{ y = ai.caesura.SumTo (x, shape) }",
            {Ramp(Shape{rows, 40})}, 1e-5);
  }
}

TEST_F(CudaRowSums, SeveralOfOneLaunch) {
  Compare(R"((float[90, 33] dy, float[90, 33] x, float[33] s, float[90, 1] m, float[90, 1] d) =>
             (float[90, 33] dx, float[33] ds, float[33] db) {
    dx, ds, db = ai.caesura.LayerNormalizationGrad <axis = -1> (dy, x, s, m, d) })",
          {Ramp(Shape{90, 33}), Ramp(Shape{90, 33}, 0.125f), Ramp(Shape{33}),
           Ramp(Shape{90, 1}, 0.0625f), Ramp(Shape{90, 1}, 0.5f)},
          1e-4);
}

// Groups as a transformer has them, where vectors of columns move as a whole: in one warp, in
// several, and with more than one vector a thread.
TEST_F(CudaRowSums, OfVectors) {
  for (int columns : {8, 768, 3072, 8200}) {
    SCOPED_TRACE(std::to_string(columns) + " columns");
    const auto with_columns = [&](std::string body) {
      for (size_t at; (at = body.find('#')) != std::string::npos;)
        body.replace(at, 1, std::to_string(columns));
      return body;
    };
    const Shape shape{9, columns}, of_row{columns}, of_rows{9, 1};
    Compare(with_columns(R"((float[9, #] x, bfloat16[9, #] p, float[#] s, float[#] b) =>
                            (float[9, #] sum, float[9, #] y, bfloat16[9, #] h) {
      sum, y, h = ai.caesura.FusedRows <body = body
          (float[9, #] X, bfloat16[9, #] P, float[#] S, float[#] B) => (SUM, Y, H) {
        Q = Cast <to = 1> (P)
        SUM = Add (X, Q)
        Y = LayerNormalization <axis = -1> (SUM, S, B)
        H = Cast <to = 16> (Y)
      }> (x, p, s, b) })"),
            {Ramp(shape), Halves(shape), Ramp(of_row), Ramp(of_row, 0.125f)}, 1e-2);
    Compare(with_columns(R"((bfloat16[9, #] dy, float[9, #] x, float[#] s, float[9, 1] m,
                             float[9, 1] d, float[9, #] before) =>
                            (float[9, #] dx, float[#] ds, float[#] db) {
      dx, ds, db = ai.caesura.FusedRows <column_outputs = [1, 2], body = body
          (bfloat16[9, #] DY, float[9, #] X, float[#] S, float[9, 1] M, float[9, 1] D,
           float[9, #] BEFORE) => (DX, DS, DB) {
        Q = Cast <to = 1> (DY)
        DN, DS, DB = ai.caesura.LayerNormalizationGrad <axis = -1> (Q, X, S, M, D)
        DX = Add (DN, BEFORE)
      }> (dy, x, s, m, d, before) })"),
            {Halves(shape), Ramp(shape, 0.125f), Ramp(of_row), Ramp(of_rows, 0.0625f),
             Ramp(of_rows, 0.5f), Ramp(shape)},
            1e-4);
  }
}

TEST_F(CudaRowSums, CastsToAHalfAndBackRound) {
  Compare(R"((float[9, 40] x) => (float[9, 40] y) {
    y = ai.caesura.FusedRows <body = body (float[9, 40] X) => (Y) {
      S = Mul (X, X)
      H = Cast <to = 16> (S)
      F = Cast <to = 1> (H)
      Y = Sub (F, S)
    }> (x) })",
          {Ramp(Shape{9, 40}, 0.01f)}, 1e-5);
}

// A third of 2304 columns is in the same threads as in the whole row; other parts are not.
TEST_F(CudaRowSums, PartsOfRows) {
  for (int columns : {4, 130, 768, 1024}) {
    SCOPED_TRACE(std::to_string(columns) + " columns a part");
    const std::string part = std::to_string(columns), all = std::to_string(3 * columns);
    const Shape of_part{7, columns}, of_all{7, 3 * columns};
    Compare("(bfloat16[7, " + part + "] q, bfloat16[7, " + part + "] k, bfloat16[7, " + part +
                "] v) => (bfloat16[7, " + all + "] y, float[" + all + R"(] sums) {
      y, sums = ai.caesura.FusedRows <column_outputs = [1], body = body (bfloat16[7, )" +
                part + "] Q, bfloat16[7, " + part + "] K, bfloat16[7, " + part +
                R"(] V) => (Y, SUMS) <
          int64[1] TO = {)" +
                all + R"(}> {
        Y = Concat <axis = -1> (Q, K, V)
        W = Cast <to = 1> (Y)
        SUMS = ai.caesura.SumTo (W, TO)
      }> (q, k, v) })",
            {Halves(of_part), Halves(of_part), Halves(of_part)}, 1e-5);
    Compare("(float[7, " + all + "] x) => (float[7, " + part + "] a, float[7, " + part +
                "] b, float[7, " + part + R"(] c) {
      a, b, c = ai.caesura.FusedRows <body = body (float[7, )" +
                all + R"(] X) => (A, B, C) {
        P, Q, R = Split <axis = -1, num_outputs = 3> (X)
        A = Mul (P, Q)
        B = Add (Q, R)
        C = Sub (R, P)
      }> (x) })",
            {Ramp(of_all)}, 1e-6);
  }
}

}  // namespace
}  // namespace caesura::testing
