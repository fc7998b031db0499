// SPDX-License-Identifier: Apache-2.0
// MatMul, Gemm, Det and the integer products (Einsum: einsum_test.cc): worked cases, plain loops,
// refusals.
// The precision of float32's products: most of them sum in blocks of terms, and their mean error,
// beside float64, is that of such sums, not of one long one. The others are no worse than one long
// sum (docs/limitations.md has their figures).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <random>

#include "core/onnx/model_reader.h"
#include "core/kernels/gemm/dnnl_ops.h"
#include "core/kernels/gemm/gemm_blocks.h"
#include "core/kernels/simd/best_isa.h"
#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "tests/kernel_case.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using Floats = std::vector<float>;

// Whole numbers from -3 to 3: their products are exact in every type.
template <typename T>
Tensor SmallNumbers(Shape shape) {
  std::vector<T> values(shape.elements());
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<T>(static_cast<int>(i * 5 % 7) - 3);
  return Tensor::Of<T>(std::move(shape), values);
}

Result<Tensor> TryProduct(KernelCase node) {
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> out, node.Run());
  return out[0].tensor();
}
Tensor ProductOf(KernelCase node) { return TryProduct(std::move(node)).value(); }
Tensor MatMulOf(const Tensor& a, const Tensor& b) {
  return ProductOf(KernelCase("MatMul", {a, b}));
}
void ExpectNoProduct(KernelCase node) {
  const Status status = TryProduct(node).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << node.op_type << status.ToString();
}

template <typename T>
void ExpectBroadcastProduct() {
  const Tensor a = SmallNumbers<T>({2, 1, 2, 3}), b = SmallNumbers<T>({4, 3, 5}),
               y = MatMulOf(a, b);
  ASSERT_EQ(y.shape(), (Shape{2, 4, 2, 5}));
  for (int64_t e = 0; e < y.elements(); ++e) {
    const int64_t j = e % 5, i = e / 5 % 2, inner = e / 10 % 4, outer = e / 40;
    T sum = 0;
    for (int64_t p = 0; p < 3; ++p)
      sum += a.data<T>()[(outer * 2 + i) * 3 + p] * b.data<T>()[(inner * 3 + p) * 5 + j];
    ASSERT_EQ(y.data<T>()[e], sum) << DTypeName(y.dtype()) << " at " << e;
  }
}

// As many columns as each instruction set takes in strips of each width, and a rest.
TEST(MatMul, TakesWideRowsInDouble) {
  const Tensor a = SmallNumbers<double>({5, 7}), b = SmallNumbers<double>({7, 61}),
               y = MatMulOf(a, b);
  for (int64_t e = 0; e < y.elements(); ++e) {
    double sum = 0;
    for (int64_t p = 0; p < 7; ++p)
      sum += a.data<double>()[e / 61 * 7 + p] * b.data<double>()[p * 61 + e % 61];
    ASSERT_EQ(y.data<double>()[e], sum) << e;
  }
}

TEST(MatMul, BroadcastsBatches) {
  ExpectBroadcastProduct<float>();
  ExpectBroadcastProduct<double>();
  ExpectBroadcastProduct<int32_t>();
  ExpectBroadcastProduct<int64_t>();
}

TEST(MatMul, TakesVectorsOnEitherSide) {
  const Tensor vector = FloatVector({1, 2, 3}),
               matrix = Tensor::Of<float>({3, 2}, {1, 2, 3, 4, 5, 6}),
               turned = Tensor::Of<float>({2, 3}, {1, 2, 3, 4, 5, 6}),
               stack = Tensor::Of<float>({2, 3, 1}, {1, 0, 0, 0, 0, 1});
  const auto expect = [](const Tensor& y, const Shape& shape, const Floats& values) {
    EXPECT_EQ(y.shape(), shape);
    EXPECT_EQ(y.ToVector<float>(), values);
  };
  expect(MatMulOf(vector, matrix), {2}, {22, 28});
  expect(MatMulOf(turned, vector), {2}, {14, 32});
  expect(MatMulOf(vector, vector), {}, {14});
  expect(MatMulOf(vector, stack), {2, 1}, {1, 3});
}

TEST(MatMul, SumsNoTermsToZeros) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
                            DType::kInt32, DType::kInt64}) {
    const Tensor y = MatMulOf(Tensor::Zeros(dtype, {2, 30, 0}), Tensor::Zeros(dtype, {0, 40}));
    EXPECT_EQ(y.shape(), (Shape{2, 30, 40}));
    EXPECT_THAT(y.ToVector<double>(), Each(0)) << DTypeName(dtype);
  }
}

TEST(MatMul, MultipliesLargeIntegersExactly) {
  const int64_t odd = (int64_t{1} << 53) + 1;  // a double holds its even neighbours only
  const Tensor y = MatMulOf(Tensor::Of<int64_t>({2}, {odd, 1}), Tensor::Of<int64_t>({2}, {3, -1}));
  EXPECT_THAT(y.ToVector<int64_t>(), ElementsAre(3 * odd - 1));
}

// A kernel that skips zeros would lose them. The larger size is oneDNN's.
TEST(MatMul, LetsNaNAndInfinityThrough) {
  for (const int64_t n : {int64_t{3}, int64_t{96}}) {
    const Tensor a = Tensor::Zeros(DType::kFloat32, {n, n}),
                 b = Tensor::Zeros(DType::kFloat32, {n, n});
    std::fill_n(a.data<float>() + n, n, 1.0f);  // row 1
    b.data<float>()[0] = kNaN;                  // columns 0 and 1
    b.data<float>()[1] = -kInfinity;
    const Tensor product = MatMulOf(a, b);
    for (int64_t i = 0; i < n; ++i) {
      const float* row = product.data<float>() + i * n;
      EXPECT_TRUE(std::isnan(row[0]));
      EXPECT_TRUE(i == 1 ? row[1] == -kInfinity : std::isnan(row[1])) << row[1];
      EXPECT_TRUE(std::all_of(row + 2, row + n, [](float y) { return y == 0; }));
    }
  }
}

TEST(MatMul, RefusesWhatDoesNotFit) {
  const auto node = [](Shape a, Shape b) {
    return KernelCase("MatMul",
                      {SmallNumbers<float>(std::move(a)), SmallNumbers<float>(std::move(b))});
  };
  ExpectNoProduct(node({2, 3}, {2, 3}));
  ExpectNoProduct(node({3}, {2}));
  ExpectNoProduct(node({2, 2, 3}, {3, 3, 2}));
  ExpectNoProduct(node({}, {2, 3}));
  ExpectNoProduct(
      KernelCase("MatMul", {SmallNumbers<float>({2, 2}), SmallNumbers<double>({2, 2})}));
}

void ExpectGemm(bool turn_a, bool turn_b, const Tensor& c, float alpha, float beta) {
  const int64_t m = 2, k = 4, n = 3;
  const Tensor a = SmallNumbers<float>(turn_a ? Shape{k, m} : Shape{m, k}),
               b = SmallNumbers<float>(turn_b ? Shape{n, k} : Shape{k, n});
  const Tensor y = ProductOf(KernelCase("Gemm", {a, b, c},
                                        {{"transA", int64_t{turn_a}},
                                         {"transB", int64_t{turn_b}},
                                         {"alpha", alpha},
                                         {"beta", beta}}));
  const int rank = c.shape().rank();
  const int64_t rows = rank < 2 ? 1 : c.shape()[0], columns = rank == 0 ? 1 : c.shape()[rank - 1];
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t p = 0; p < k; ++p)
        sum += a.data<float>()[turn_a ? p * m + i : i * k + p] *
               b.data<float>()[turn_b ? j * k + p : p * n + j];
      const float added = c.data<float>()[(rows == 1 ? 0 : i * columns) + (columns == 1 ? 0 : j)];
      EXPECT_EQ(y.data<float>()[i * n + j], alpha * sum + beta * added)
          << turn_a << turn_b << c.shape().ToString() << alpha << " " << beta;
    }
  }
}

TEST(Gemm, TurnsItsMatricesAndAddsC) {
  for (const Shape& shape : {Shape{2, 3}, Shape{3}, Shape{1, 3}, Shape{2, 1}, Shape{1}, Shape{}}) {
    const Tensor c = SmallNumbers<float>(shape);
    for (const bool turn_a : {false, true}) {
      for (const bool turn_b : {false, true}) {
        ExpectGemm(turn_a, turn_b, c, 1, 1);
        ExpectGemm(turn_a, turn_b, c, 0.5f, 1);
        ExpectGemm(turn_a, turn_b, c, 1, -2);
        ExpectGemm(turn_a, turn_b, c, -0.5f, 4);
      }
    }
  }
}

TEST(Gemm, GivesBetaTimesCWithoutTerms) {
  const Tensor a = Tensor::Zeros(DType::kFloat32, {2, 0}),
               b = Tensor::Zeros(DType::kFloat32, {0, 3});
  const AttributeMap scaled = {{"alpha", 5.0f}, {"beta", 2.0f}};
  EXPECT_THAT(
      ProductOf(KernelCase("Gemm", {a, b, FloatVector({1, 2, 3})}, scaled)).ToVector<float>(),
      ElementsAre(2, 4, 6, 2, 4, 6));
  EXPECT_THAT(ProductOf(KernelCase("Gemm", {a, b, FloatVector({1, 2, 3})})).ToVector<float>(),
              ElementsAre(1, 2, 3, 1, 2, 3));
  EXPECT_THAT(ProductOf(KernelCase("Gemm", {a, b}, scaled)).ToVector<float>(), Each(0));
}

TEST(Gemm, RefusesWhatDoesNotFit) {
  const auto m = [](Shape shape) { return SmallNumbers<float>(std::move(shape)); };
  ExpectNoProduct(KernelCase("Gemm", {m({2, 3}), m({2, 3})}));
  ExpectNoProduct(KernelCase("Gemm", {m({2, 3}), m({3, 2})}, {{"transA", int64_t{1}}}));
  ExpectNoProduct(KernelCase("Gemm", {m({1, 2, 3}), m({3, 2})}));
  for (const Shape& c : {Shape{3}, Shape{4, 1}, Shape{2, 3}, Shape{1, 2, 2}})
    ExpectNoProduct(KernelCase("Gemm", {m({2, 3}), m({3, 2}), m(c)}));
}

TEST(Det, OfStacksOfMatrices) {
  const auto det = [](const Tensor& x) { return ProductOf(KernelCase("Det", {x})); };
  const Tensor pairs = det(Tensor::Of<float>({3, 1, 2, 2}, {1, 3, 2, 4, 2, 4, 1, 2, 0, 1, 1, 0}));
  EXPECT_EQ(pairs.shape(), (Shape{3, 1}));
  EXPECT_THAT(pairs.ToVector<float>(), ElementsAre(-2, 0, -1));  // the second is singular
  // 0 * (4 * 8 - 5 * 7) - 2 * (3 * 8 - 5 * 6) + 1 * (3 * 7 - 4 * 6): pivots must be looked for.
  const Tensor three = det(Tensor::Of<double>({3, 3}, {0, 2, 1, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(three.shape(), Shape{});
  EXPECT_NEAR(three.data<double>()[0], 9, 1e-13);  // some roundings of numbers up to 9
  EXPECT_THAT(det(Tensor::Of<float>({2, 1, 1}, {-7, 0})).ToVector<float>(), ElementsAre(-7, 0));
  EXPECT_THAT(det(Tensor::Zeros(DType::kFloat32, {2, 0, 0})).ToVector<float>(), ElementsAre(1, 1));
  // NaN is not hidden, not by a column of zeros either.
  for (const std::vector<float>& values :
       {std::vector<float>{kNaN, 1, 1, 1}, {0, 1, kNaN, 2}, {0, 1, 0, kNaN}, {1, kNaN, 2, 1}})
    EXPECT_TRUE(std::isnan(det(Tensor::Of<float>({2, 2}, values)).data<float>()[0]));
  ExpectNoProduct(KernelCase("Det", {SmallNumbers<float>({2, 3})}));
  ExpectNoProduct(KernelCase("Det", {SmallNumbers<float>({4})}));
}

// An 8-bit matrix less the zero points of its rows or columns.
int Shifted(const Tensor& x, int64_t row, int64_t column, const std::vector<int>& zeros,
            bool of_rows) {
  const int64_t columns = x.shape()[1], line = of_rows ? row : column;
  return x.ToVector<int>()[row * columns + column] - zeros[zeros.size() == 1 ? 0 : line];
}

Tensor UnsignedBytes() { return Tensor::Of<uint8_t>({2, 3}, {0, 255, 7, 128, 3, 90}); }
Tensor SignedBytes() { return Tensor::Of<int8_t>({3, 2}, {-128, 127, 5, -6, 0, 33}); }

TEST(IntegerProducts, TakeZeroPointsOfRowsAndColumns) {
  for (const std::vector<int>& rows : {std::vector<int>{9}, std::vector<int>{9, 200}}) {
    for (const std::vector<int>& columns : {std::vector<int>{-4}, std::vector<int>{-4, 100}}) {
      const Tensor a_zero = Tensor::Of<uint8_t>({static_cast<int64_t>(rows.size())},
                                                {rows.begin(), rows.end()}),
                   b_zero = Tensor::Of<int8_t>({static_cast<int64_t>(columns.size())},
                                               {columns.begin(), columns.end()});
      const Tensor y =
          ProductOf(KernelCase("MatMulInteger", {UnsignedBytes(), SignedBytes(), a_zero, b_zero}));
      ASSERT_EQ(y.dtype(), DType::kInt32);
      for (int64_t e = 0; e < 4; ++e) {
        int sum = 0;
        for (int64_t p = 0; p < 3; ++p)
          sum += Shifted(UnsignedBytes(), e / 2, p, rows, true) *
                 Shifted(SignedBytes(), p, e % 2, columns, false);
        EXPECT_EQ(y.data<int32_t>()[e], sum) << rows.size() << columns.size();
      }
    }
  }
  // Without zero points: 255 * 5, 255 * -6 + 7 * 33, ...
  EXPECT_THAT(
      ProductOf(KernelCase("MatMulInteger", {UnsignedBytes(), SignedBytes()})).ToVector<int>(),
      ElementsAre(1275, -1299, -16369, 19208));
}

TEST(IntegerProducts, RoundToEvenAndSaturate) {
  const auto quantized = [](const Tensor& a, Floats a_scale, Floats b_scale, uint8_t y_zero) {
    const Tensor b = Tensor::Of<uint8_t>({1, 2}, {1, 3}), zero = Tensor::Of<uint8_t>({}, {2});
    return ProductOf(KernelCase("QLinearMatMul",
                                {a, FloatVector(a_scale), zero, b, FloatVector(b_scale), zero,
                                 Tensor::Scalar(1.0f), Tensor::Of<uint8_t>({}, {y_zero})}))
        .ToVector<int>();
  };
  // Rows of 5 - 2 and 0 - 2 by columns of 1 - 2 and 3 - 2.
  const Tensor a = Tensor::Of<uint8_t>({2, 1}, {5, 0});
  EXPECT_THAT(quantized(a, {1}, {1}, 10), ElementsAre(7, 13, 12, 8));
  EXPECT_THAT(quantized(a, {1}, {0.5f}, 10), ElementsAre(8, 12, 11, 9));  // -1.5 and 1.5 to even
  EXPECT_THAT(quantized(a, {1, 4}, {1, 2}, 10), ElementsAre(7, 16, 18, 0));
  EXPECT_THAT(quantized(a, {100}, {1}, 10), ElementsAre(0, 255, 210, 0));
}

TEST(IntegerProducts, RefuseZeroPointsThatDoNotFit) {
  const Tensor three = Tensor::Of<uint8_t>({3}, {1, 2, 3}), other = Tensor::Of<int8_t>({}, {1});
  ExpectNoProduct(KernelCase("MatMulInteger", {UnsignedBytes(), SignedBytes(), three}));
  ExpectNoProduct(KernelCase("MatMulInteger", {UnsignedBytes(), SignedBytes(), other}));
  ExpectNoProduct(KernelCase("MatMulInteger", {UnsignedBytes(), UnsignedBytes()}));
  const Tensor scale = Tensor::Scalar(1.0f), zero = Tensor::Of<uint8_t>({}, {0});
  ExpectNoProduct(KernelCase("QLinearMatMul", {UnsignedBytes(), FloatVector({1, 2, 3}), zero,
                                               SignedBytes(), scale, other, scale, zero}));
}

// One product in blocks of which even small sizes need several: C = alpha A B + bias + addend.
template <typename T>
struct BlocksCase {
  GemmSpec spec;
  std::vector<T> a, b, c, bias, addend;

  // `turn` 1: that factor's columns are contiguous, not its rows; 2: neither are.
  BlocksCase(int64_t m, int64_t n, int64_t k, int turn_a, int turn_b)
      : a(2 * m * k), b(2 * k * n), c(m * (n + 3)), bias(n), addend(c.size()) {
    const auto strides = [](int64_t rows, int64_t columns, int turn) {
      return turn == 0   ? RowMajor(columns)
             : turn == 1 ? ColumnMajor(rows)
                         : MatrixStrides{2 * columns, 2};
    };
    spec = {DTypeOf<T>::value,     DTypeOf<T>::value, m, n, k, strides(m, k, turn_a),
            strides(k, n, turn_b), RowMajor(n + 3)};
  }
  void Fill(const std::function<T()>& next) {
    for (auto* values : {&a, &b, &c, &bias, &addend}) std::ranges::generate(*values, next);
  }
  std::vector<T> Run(const GemmBlocks& blocks) const {
    std::vector<T> out = c;
    Tensor scratch = Tensor::Zeros(DTypeOf<T>::value, {static_cast<int64_t>(blocks.scratch)});
    for (int64_t item = 0; item < blocks.items; ++item) {
      MultiplyGemmBlocks<T>(spec, blocks, item, a.data(), b.data(), out.data(),
                            spec.bias ? bias.data() : nullptr,
                            spec.addend ? addend.data() : nullptr, scratch.data<T>());
    }
    return out;
  }
};

GemmBlocks SmallBlocks(const GemmSpec& s, int64_t rows, int64_t columns) {
  return {std::min<int64_t>(16, s.k), rows, columns, 2, 2, 4, size_t(16 * (rows + columns))};
}

template <typename T>
void ExpectAllTermsOnce() {
  for (const auto [m, n, k] :
       {std::array<int64_t, 3>{1, 1, 1}, {5, 40, 17}, {45, 107, 50}, {12, 64, 32}}) {
    for (int layout = 0; layout < 9; ++layout) {
      for (int kind = 0; kind < 4; ++kind) {
        BlocksCase<T> x(m, n, k, layout / 3, layout % 3);
        x.spec.alpha = kind == 1 ? -2 : 1;
        x.spec.accumulate = kind == 1;
        x.spec.bias = kind >= 2;
        x.spec.addend = kind == 3;
        std::mt19937 random(7);
        x.Fill([&] { return static_cast<T>(static_cast<int>(random() % 7) - 3); });
        std::vector<T> expected = x.c;  // with the numbers between its rows
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            const int64_t place = i * x.spec.c.row + j;
            double sum = 0;
            for (int64_t p = 0; p < k; ++p)
              sum += x.a[i * x.spec.a.row + p * x.spec.a.col] *
                     x.b[p * x.spec.b.row + j * x.spec.b.col];
            expected[place] =
                static_cast<T>(x.spec.alpha * sum + (kind == 1 ? x.c[place] : 0) +
                               (kind >= 2 ? x.bias[j] : 0) + (kind == 3 ? x.addend[place] : 0));
          }
        }
        ASSERT_EQ(x.Run(SmallBlocks(x.spec, 6, 32)), expected) << m << " " << layout;
        ASSERT_EQ(x.Run(GemmBlocks::Plan(x.spec, 1, 16, 6)), expected) << m << " " << layout;
      }
    }
  }
}

TEST(GemmBlocks, AddAllTermsOnce) {
  if (BestIsa() == Isa::kBaseline) GTEST_SKIP() << "for AVX2";
  ExpectAllTermsOnce<float>();
  ExpectAllTermsOnce<double>();
}

TEST(GemmBlocks, GiveTheSameBitsInAnyParts) {
  if (BestIsa() == Isa::kBaseline) GTEST_SKIP() << "for AVX2";
  std::vector<float> first;
  for (int layout = 0; layout < 4; ++layout) {
    BlocksCase<float> x(45, 107, 50, 0, 0), turned(45, 107, 50, layout / 2, layout % 2);
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    x.Fill([&] { return normal(random); });
    turned.c = x.c;
    for (int64_t p = 0; p < 50; ++p) {
      for (int64_t i = 0; i < 45; ++i)
        turned.a[i * turned.spec.a.row + p * turned.spec.a.col] = x.a[i * 50 + p];
      for (int64_t j = 0; j < 107; ++j)
        turned.b[p * turned.spec.b.row + j * turned.spec.b.col] = x.b[p * 107 + j];
    }
    if (first.empty()) first = x.Run(GemmBlocks::Plan(x.spec, 1, 16, 1));
    for (const int threads : {1, 2, 3, 8})
      EXPECT_EQ(turned.Run(GemmBlocks::Plan(turned.spec, 1, 16, threads)), first)
          << layout << " " << threads;
    EXPECT_EQ(turned.Run(SmallBlocks(turned.spec, 12, 32)), first) << layout;
  }
}

TEST(GemmBlocks, ShareTheWorkOut) {  // in elements of C, the longest thread over the mean
  for (const auto [m, n, batches] :
       {std::array<int64_t, 3>{1024, 1024, 1}, {8192, 384, 1}, {128, 768, 12}}) {
    const GemmSpec spec = BlocksCase<float>(m, n, 64, 0, 0).spec;
    for (const int threads : {2, 8, 16, 64}) {
      const GemmBlocks blocks = GemmBlocks::Plan(spec, batches, 64, threads);
      const int64_t rows = (m / blocks.row_parts + 6) / 6 * 6,
                    columns = (n / blocks.column_parts + 31) / 32 * 32;
      const int64_t longest = (blocks.items + threads - 1) / threads * rows * columns;
      EXPECT_LE(longest, 1.4 * static_cast<double>(m * n * batches) / threads)
          << m << " " << threads;
    }
  }
}

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
