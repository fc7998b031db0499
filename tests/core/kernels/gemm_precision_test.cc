// SPDX-License-Identifier: Apache-2.0
// Most products of float32 sum in blocks of terms: their mean error, beside float64, is that of
// such sums, not of one long one. The others are no worse than one long sum (docs/limitations.md
// has their figures).
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/graph/graph_text.h"
#include "core/kernels/cpu/gemm/dnnl_ops.h"
#include "core/providers/cpu_provider.h"
#include "core/session/session.h"

namespace caesura {
namespace {

struct Product {
  const char* name;
  int64_t m, n;
  int trans_a, trans_b;
  // kInLanes: each lane of a vector sums its own terms, in vectors of 8 numbers or more. kPacked:
  // at once, of packed weights.
  enum Sum { kInBlocks, kInLanes, kAtOnce, kPacked } sum = kInBlocks;
};
void PrintTo(const Product& p, std::ostream* out) { *out << p.name; }

// The mean error of C = A B with sums of `block` terms, which are then added up.
double ErrorOfBlocks(const std::vector<float>& a, const std::vector<float>& b,
                     const std::vector<double>& exact, int64_t k, int64_t block) {
  const int64_t n = static_cast<int64_t>(b.size()) / k;
  double error = 0;
  for (size_t e = 0; e < exact.size(); ++e) {
    const float* row = a.data() + static_cast<int64_t>(e) / n * k;
    const float* column = b.data() + static_cast<int64_t>(e) % n * k;
    float total = 0;
    for (int64_t p = 0; p < k; p += block) {
      float sum = 0;
      for (int64_t q = p; q < std::min(k, p + block); ++q) sum = std::fma(row[q], column[q], sum);
      total += sum;
    }
    error += std::abs(total - exact[e]);
  }
  return error / static_cast<double>(exact.size());
}

class GemmPrecision : public ::testing::TestWithParam<Product> {};

TEST_P(GemmPrecision, IsThatOfSumsInBlocks) {
  const Product& p = GetParam();
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const int64_t k : {256, 512, 784, 1024, 4096}) {
    const auto dims = [&](int64_t rows, int64_t columns, int turned) {
      return turned != 0 ? Shape{columns, rows} : Shape{rows, columns};
    };
    std::vector<float> a(p.m * k), b(p.n * k);  // rows of A, columns of B
    for (float& x : a) x = normal(random);
    for (float& x : b) x = normal(random);
    std::vector<double> exact(std::min<int64_t>(p.m, 32) * p.n);  // of the first rows
    for (int64_t e = 0; e < static_cast<int64_t>(exact.size()); ++e) {
      for (int64_t q = 0; q < k; ++q)
        exact[e] += static_cast<double>(a[e / p.n * k + q]) * b[e % p.n * k + q];
    }
    const Tensor x = Tensor::Zeros(DType::kFloat32, dims(p.m, k, p.trans_a));
    Tensor y = Tensor::Zeros(DType::kFloat32, dims(k, p.n, p.trans_b));
    for (int64_t q = 0; q < k; ++q) {
      for (int64_t i = 0; i < p.m; ++i)
        x.data<float>()[p.trans_a != 0 ? q * p.m + i : i * k + q] = a[i * k + q];
      for (int64_t j = 0; j < p.n; ++j)
        y.data<float>()[p.trans_b != 0 ? j * k + q : q * p.n + j] = b[j * k + q];
    }
    if (p.sum == Product::kPacked) y = PackDnnlWeights(y, k, p.n, {p.n, 1}).value();
    if (!y.defined()) GTEST_SKIP() << "oneDNN packs nothing here";
    const std::string flags =
        "<transA = " + std::to_string(p.trans_a) + ", transB = " + std::to_string(p.trans_b) + ">";
    SessionOptions options;
    options.providers = {MakeCpuProvider()};
    const std::string node =
        p.sum == Product::kPacked ? "ai.caesura.PackedMatMul" : "Gemm " + flags;
    const std::string graph =
        "g (float[I,J] x, float[K,L] y) => (float[M,N] z) { z = " + node + " (x, y) }";
    const std::string opsets = "<ir_version: 10, opset_import: [\"\": 17, \"ai.caesura\": 1]> ";
    auto session =
        Session::Create(ParseModelText(opsets + graph).value(), std::move(options)).value();
    const Tensor z = session->Run({{"x", x}, {"y", y}}).value()[0].tensor();
    double error = 0;
    for (size_t e = 0; e < exact.size(); ++e) error += std::abs(z.data<float>()[e] - exact[e]);
    error /= static_cast<double>(exact.size());
    // Blocks of at most 288 terms, and of at most half of the sum. Another order of such sums: 3%
    // of some thousand elements.
    const int64_t blocks = std::max<int64_t>(2, (k + 287) / 288);
    const double in_blocks = ErrorOfBlocks(a, b, exact, k, (k + blocks - 1) / blocks);
    const double in_lanes = std::max(in_blocks, ErrorOfBlocks(a, b, exact, k, k / 8));
    const double at_once = ErrorOfBlocks(a, b, exact, k, k);
    const double allowed = p.sum == Product::kInBlocks  ? in_blocks
                           : p.sum == Product::kInLanes ? in_lanes
                                                        : at_once;
    EXPECT_LE(error, 1.06 * allowed) << "of " << k << " terms";
    EXPECT_GT(at_once, 1.2 * in_blocks);  // so that one long sum fails here
  }
}

INSTANTIATE_TEST_SUITE_P(
    Products, GemmPrecision,
    ::testing::Values(Product{"Small", 32, 32, 0, 0}, Product{"SmallTurned", 32, 32, 1, 1},
                    Product{"Large", 256, 192, 0, 0}, Product{"WeightGradient", 320, 192, 1, 0},
                    Product{"TransposedWeights", 512, 128, 0, 1},
                    Product{"OneRowTransposed", 1, 512, 0, 1, Product::kInLanes},
                    Product{"FewRowsTransposed", 16, 512, 0, 1, Product::kAtOnce},
                    Product{"RowsTransposed", 64, 512, 0, 1, Product::kAtOnce},
                    Product{"FewColumns", 64, 100, 0, 0, Product::kAtOnce},
                    Product{"FewColumnsTransposed", 64, 100, 0, 1, Product::kAtOnce},
                    Product{"Packed", 16, 512, 0, 0, Product::kPacked}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace caesura
