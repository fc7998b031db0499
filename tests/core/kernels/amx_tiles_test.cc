// SPDX-License-Identifier: Apache-2.0
// Products of packed tiles against sums in double, for sizes that end inside of tiles.
#include "core/kernels/simd/amx_tiles.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "core/tensor/dtype.h"

namespace caesura {
namespace {

int64_t TilesFor(int64_t n, int64_t size) { return (n + size - 1) / size; }

// 64-byte aligned memory.
struct alignas(64) Line {
  char bytes[64];
};

// A matrix of small whole numbers, which bfloat16 holds exactly, in memory of its own step.
struct Matrix {
  int64_t rows, columns, step, column_step, seed;
  std::vector<uint16_t> halves;

  Matrix(int64_t rows, int64_t columns, int64_t column_step, int64_t seed)
      : rows(rows),
        columns(columns),
        step(columns * column_step + 3),
        column_step(column_step),
        seed(seed),
        halves(rows * step, 0x7fc0) {  // NaN in between
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        halves[i * step + j * column_step] = BFloat16(static_cast<float>(value(i, j))).bits;
      }
    }
  }
  double value(int64_t i, int64_t j) const {
    return static_cast<double>((i * 7 + j * 5 + seed) % 17 - 8);
  }
  amx::Halves view() const { return {halves.data(), step, column_step, rows, columns}; }
};

struct Packed {
  std::vector<Line> memory;
  amx::Tiles tiles;
  Packed(int64_t lines, int64_t deep)
      : memory(lines * deep * amx::kTileBytes / 64), tiles{memory.data()->bytes, deep} {}
};

class AmxTilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!amx::Available()) GTEST_SKIP() << "this machine has no AMX";
  }
};

// C[i][j] against the sum over the depth, zeros around the matrix.
void ExpectProduct(const std::vector<Line>& memory, int64_t step, int64_t m, int64_t n, int64_t k,
                   const auto& left, const auto& right) {
  const float* c = reinterpret_cast<const float*>(memory.data());
  for (int64_t i = 0; i < TilesFor(m, 16) * 16; ++i) {
    for (int64_t j = 0; j < TilesFor(n, 16) * 16; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k && i < m && j < n; ++p) sum += left(i, p) * right(p, j);
      ASSERT_EQ(c[i * step + j], sum) << i << ", " << j;
    }
  }
}

TEST_F(AmxTilesTest, ProductsOfPackedMatrices) {
  const amx::Registers registers;
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{16, 16, 32}, {40, 70, 50}, {1, 100, 65}, {33, 24, 7}}) {
    for (int64_t column_step : {1, 2}) {
      const Matrix a(m, k, column_step, 1), b(k, n, column_step, 2), turned(n, k, column_step, 3);
      const int64_t rows = TilesFor(m, 16), columns = TilesFor(n, 16), deep = TilesFor(k, 32),
                    step = columns * 16;
      Packed left(rows, deep), right(columns, deep);
      std::vector<Line> c(rows * step);
      amx::PackLeft(a.view(), rows, deep, left.tiles);
      amx::PackRight(b.view(), columns, deep, right.tiles);
      auto product = [&](bool add) {
        amx::Multiply(left.tiles, right.tiles, deep, reinterpret_cast<float*>(c.data()), step, rows,
                      columns, add);
      };
      auto left_at = [&](int64_t i, int64_t p) { return a.value(i, p); };
      product(false);
      ExpectProduct(c, step, m, n, k, left_at, [&](int64_t p, int64_t j) { return b.value(p, j); });
      amx::PackRightTurned(turned.view(), columns, deep, right.tiles);
      product(false);
      ExpectProduct(c, step, m, n, k, left_at,
                    [&](int64_t p, int64_t j) { return turned.value(j, p); });
      product(true);
      ExpectProduct(c, step, m, n, k, left_at,
                    [&](int64_t p, int64_t j) { return 2 * turned.value(j, p); });
    }
  }
}

// [64, 32] floats, as they stand and turned, times a matrix.
TEST_F(AmxTilesTest, ProductsOfNarrowedFloats) {
  const amx::Registers registers;
  std::vector<Line> memory(64 * 2);
  float* x = reinterpret_cast<float*>(memory.data());
  auto at = [](int64_t i, int64_t j) { return static_cast<double>((i * 3 + j) % 9 - 4); };
  for (int64_t i = 0; i < 64; ++i) {
    for (int64_t j = 0; j < 32; ++j) x[i * 32 + j] = static_cast<float>(at(i, j));
  }
  const Matrix short_b(32, 20, 1, 0), long_b(64, 20, 1, 0);
  Packed left(4, 2), right(2, 2);
  std::vector<Line> c(64 * 2);
  amx::NarrowLeft(x, 32, 4, 1, {left.tiles.at, 1});
  amx::PackRight(short_b.view(), 2, 1, {right.tiles.at, 1});
  amx::Multiply({left.tiles.at, 1}, {right.tiles.at, 1}, 1, reinterpret_cast<float*>(c.data()), 32,
                4, 2, false);
  ExpectProduct(c, 32, 64, 20, 32, at, [&](int64_t p, int64_t j) { return short_b.value(p, j); });
  amx::NarrowLeftTurned(x, 32, 2, 2, left.tiles);
  amx::PackRight(long_b.view(), 2, 2, right.tiles);
  amx::Multiply(left.tiles, right.tiles, 2, reinterpret_cast<float*>(c.data()), 32, 2, 2, false);
  ExpectProduct(
      c, 32, 32, 20, 64, [&](int64_t i, int64_t p) { return at(p, i); },
      [&](int64_t p, int64_t j) { return long_b.value(p, j); });
}

}  // namespace
}  // namespace caesura
