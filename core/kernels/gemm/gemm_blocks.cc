// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/gemm/gemm_blocks.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>

#include "core/kernels/gemm/gemm_target.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/float_tiles.h"

namespace caesura {
namespace {

// As CAESURA_BASELINE_ONLY: such a build compiles each loop once.
#if defined(__x86_64__) && !defined(CAESURA_BASELINE_ONLY)
#define CAESURA_AVX2 [[gnu::target("arch=x86-64-v3"), gnu::flatten]]
#else
#define CAESURA_AVX2 [[gnu::flatten]]
#endif

using Four = tiles::Registers<tiles::Vectors16>;
using Eight = tiles::Registers<tiles::Vectors32>;

// A tile of C: 12 of 16 registers hold its sums.
constexpr int64_t kTileRows = 6, kTileColumns = 2 * Eight::kWidth;
constexpr int64_t kBlockRows = 480;  // of C and A: C stays in a cache from block to block of terms
constexpr int64_t kBlockColumns = 256;  // of C and B: B's stay in the L2 cache
// Rows of A that so many floats separate share the lines of the L1 cache: they are packed.
constexpr int64_t kFarApart = 1024;

int64_t RoundUp(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// The length of even parts of `count` of at most `most`, in whole units.
int64_t EvenPart(int64_t count, int64_t most, int64_t unit) {
  const int64_t parts = (count + most - 1) / most;
  return RoundUp((count + parts - 1) / parts, unit);
}

// to[j][i] = from[i][j] for 8 x 8 floats.
inline void TransposeEight(const float* from, int64_t from_step, float* to, int64_t to_step) {
  using Floats = Eight::Floats;
  for (int half = 0; half < 2; ++half, from += 4, to += 4 * to_step) {
    Floats rows[4];  // r, and r + 4 beside it
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      rows[r] = __builtin_shufflevector(Four::AtLoose(from + r * from_step).floats,
                                        Four::AtLoose(from + (r + 4) * from_step).floats, 0, 1, 2,
                                        3, 4, 5, 6, 7);
    }
    const Floats low0 = __builtin_shufflevector(rows[0], rows[1], 0, 8, 1, 9, 4, 12, 5, 13),
                 low1 = __builtin_shufflevector(rows[2], rows[3], 0, 8, 1, 9, 4, 12, 5, 13),
                 high0 = __builtin_shufflevector(rows[0], rows[1], 2, 10, 3, 11, 6, 14, 7, 15),
                 high1 = __builtin_shufflevector(rows[2], rows[3], 2, 10, 3, 11, 6, 14, 7, 15);
    Eight::Store(to, __builtin_shufflevector(low0, low1, 0, 1, 8, 9, 4, 5, 12, 13));
    Eight::Store(to + to_step, __builtin_shufflevector(low0, low1, 2, 3, 10, 11, 6, 7, 14, 15));
    Eight::Store(to + 2 * to_step, __builtin_shufflevector(high0, high1, 0, 1, 8, 9, 4, 5, 12, 13));
    Eight::Store(to + 3 * to_step,
                 __builtin_shufflevector(high0, high1, 2, 3, 10, 11, 6, 7, 14, 15));
  }
}

// Tiles of A: to[p][r] = a(r, p) for each kTileRows rows, zeros after the last one.
CAESURA_AVX2 void PackRows(const float* a, MatrixStrides as, int64_t rows, int64_t depth,
                           float* to) {
  constexpr int64_t kLines = 4;  // at a time: a line of the cache holds rows of several tiles
  for (int64_t p0 = 0; p0 < depth; p0 += kLines) {
    const int64_t end = std::min(depth, p0 + kLines);
    for (int64_t i = 0; i < rows; i += kTileRows) {
      const float* from = a + i * as.row + p0 * as.col;
      float* tile = to + i * depth + p0 * kTileRows;
      const int64_t count = std::min(kTileRows, rows - i);
      int64_t r = 0;
      if (as.col == 1 && count == kTileRows && end == p0 + kLines) {
        tiles::TransposeFour(from, as.row, tile, kTileRows);
        r = 4;
      }
      for (int64_t p = p0; p < end; ++p, from += as.col, tile += kTileRows) {
        if (as.row == 1 && count == kTileRows) {
          std::memcpy(tile, from, kTileRows * sizeof(float));
          continue;
        }
        for (int64_t q = r; q < count; ++q) tile[q] = from[q * as.row];
        std::fill(tile + count, tile + kTileRows, 0.0f);
      }
    }
  }
}

// A tile of B: to[p][j] = b(p, j) for kTileColumns, zeros after the last one.
CAESURA_AVX2 void PackColumns(const float* b, MatrixStrides bs, int64_t depth, int64_t columns,
                              float* to) {
  constexpr int64_t kLine = 16;  // floats of a line of the cache
  int64_t j = 0;
  for (; bs.row == 1 && j + Eight::kWidth <= columns; j += Eight::kWidth) {
    const float* from = b + j * bs.col;
    int64_t p = 0;
    for (; p + Eight::kWidth <= depth; p += Eight::kWidth) {
      // The columns of the next tile: they come from far.
      for (int64_t i = 0; p % kLine == 0 && i < Eight::kWidth; ++i)
        __builtin_prefetch(from + (kTileColumns + i) * bs.col + p);
      TransposeEight(from + p, bs.col, to + p * kTileColumns + j, kTileColumns);
    }
    for (; p < depth; ++p) {
      for (int64_t i = 0; i < Eight::kWidth; ++i)
        to[p * kTileColumns + j + i] = from[i * bs.col + p];
    }
  }
  for (int64_t p = 0; p < depth; ++p) {
    float* row = to + p * kTileColumns;
    for (int64_t i = j; i < columns; ++i) row[i] = b[p * bs.row + i * bs.col];
    std::fill(row + columns, row + kTileColumns, 0.0f);
  }
}

// Whole tiles of a B whose rows are contiguous. By rows: each lies in other pages of memory.
CAESURA_AVX2 void PackLines(const float* b, int64_t step, int64_t depth, int64_t tiles, float* to) {
  constexpr int64_t kAhead = 4;  // rows that are fetched before they are needed
  for (int64_t p = 0; p < depth; ++p, b += step, to += kTileColumns) {
    float* tile = to;
    for (int64_t j = 0; j < tiles * kTileColumns; j += kTileColumns, tile += depth * kTileColumns) {
      __builtin_prefetch(b + kAhead * step + j);
      Eight::Store(tile, Eight::AtLoose(b + j).floats);
      Eight::Store(tile + Eight::kWidth, Eight::AtLoose(b + j + Eight::kWidth).floats);
    }
  }
}

// The factors of a tile of C, over the same terms. A(r, p) is a[r * a_step + p], or
// a[p * a_step + r] where the kernel reads across.
struct TileFactors {
  const float* a;
  int64_t a_step;
  const float* b;
  int64_t b_step, depth;
};

// kRows of C from `row` and `column` on, of which `columns` exist. A function by itself: in a
// larger one its steps do not stay in registers.
template <int kRows, bool kAcross>
CAESURA_AVX2 [[gnu::noinline]] void MultiplyTile(const GemmTarget& to, const TileFactors& f,
                                                 int64_t row, int64_t column, int64_t columns) {
  using Floats = Eight::Floats;
  constexpr int64_t kAhead = 16;  // rows of B that are fetched before they are needed
  const int64_t place = row * to.s.c.row + column, a_step = f.a_step, b_step = f.b_step;
  for (int64_t r = 0; r < kRows; ++r) {
    __builtin_prefetch(to.c + place + r * to.s.c.row);
    __builtin_prefetch(to.c + place + r * to.s.c.row + kTileColumns - 1);
  }
  const float *a = f.a, *b = f.b;
  Floats sum[kRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = Floats{};
#pragma GCC unroll 4
  for (int64_t p = 0; p < f.depth; ++p, b += b_step) {
    __builtin_prefetch(b + kAhead * b_step);
    const Floats right[2] = {Eight::AtLoose(b).floats, Eight::AtLoose(b + Eight::kWidth).floats};
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const float left = a[kAcross ? r : r * a_step];
      sum[r][0] += left * right[0];
      sum[r][1] += left * right[1];
    }
    a += kAcross ? a_step : 1;
  }
  const bool plain = to.s.alpha == 1 && to.bias == nullptr && to.addend == nullptr;
  if (plain && columns == kTileColumns) {
    float* c = to.c + place;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r, c += to.s.c.row) {
      if (to.add) {
        sum[r][0] += Eight::AtLoose(c).floats;
        sum[r][1] += Eight::AtLoose(c + Eight::kWidth).floats;
      }
      Eight::Store(c, sum[r][0]);
      Eight::Store(c + Eight::kWidth, sum[r][1]);
    }
    return;
  }
  alignas(64) float sums[kRows * kTileColumns];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    Eight::Store(sums + r * kTileColumns, sum[r][0]);
    Eight::Store(sums + r * kTileColumns + Eight::kWidth, sum[r][1]);
  }
  WriteBlock<Eight>(to, sums, kTileColumns, row, kRows, column, columns);
}

// A block of terms for the part of C that begins at `row` and `column`; `a` and `b` begin there,
// too. A's tiles are in `left` where they are packed, B's go to `right`.
struct Block {
  const float *a, *b;
  int64_t row, rows, column, columns, depth;
  bool packs_a;
  const float* left;
  float* right;
};

using TileFunction = void (*)(const GemmTarget&, const TileFactors&, int64_t, int64_t, int64_t);

template <bool kAcross>
TileFunction TileOf(int64_t rows) {
  constexpr TileFunction kTiles[] = {MultiplyTile<1, kAcross>, MultiplyTile<2, kAcross>,
                                     MultiplyTile<3, kAcross>, MultiplyTile<4, kAcross>,
                                     MultiplyTile<5, kAcross>, MultiplyTile<6, kAcross>};
  return kTiles[std::min(rows, kTileRows) - 1];
}

void MultiplyBlockOfTerms(const GemmTarget& to, const Block& x) {
  const MatrixStrides as = to.s.a, bs = to.s.b;
  // One line of tiles takes whole tiles of B as they lie.
  const int64_t whole = bs.col == 1 ? x.columns / kTileColumns : 0;
  const bool direct = whole > 0 && x.rows <= kTileRows;
  if (!direct) PackLines(x.b, bs.row, x.depth, whole, x.right);
  for (int64_t j = whole * kTileColumns; j < x.columns; j += kTileColumns) {
    PackColumns(x.b + j * bs.col, bs, x.depth, std::min(kTileColumns, x.columns - j),
                x.right + j * x.depth);
  }
  for (int64_t i = 0; i < x.rows; i += kTileRows) {
    const TileFunction tile = x.packs_a ? TileOf<true>(x.rows - i) : TileOf<false>(x.rows - i);
    TileFactors f{x.packs_a ? x.left + i * x.depth : x.a + i * as.row,
                  x.packs_a ? kTileRows : as.row, nullptr, kTileColumns, x.depth};
    for (int64_t j = 0; j < x.columns; j += kTileColumns) {
      const bool lies = direct && j < whole * kTileColumns;
      f.b = lies ? x.b + j : x.right + j * x.depth;
      f.b_step = lies ? bs.row : kTileColumns;
      tile(to, f, x.row + i, x.column + j, std::min(kTileColumns, x.columns - j));
    }
  }
}

bool PacksA(const GemmSpec& s) { return s.a.col != 1 || s.a.row % kFarApart == 0; }

}  // namespace

GemmBlocks GemmBlocks::Plan(const GemmSpec& s, int64_t batches, int64_t terms, int threads) {
  assert(s.m > 0 && s.n > 0 && s.k > 0);
  GemmBlocks out;
  out.terms = std::min(terms, s.k);
  // As many parts as give the longest thread the least work: multiply-adds, and lines of A and B
  // that each part reads by itself.
  constexpr double kOfLine = 8;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t r = 1; r <= threads; ++r) {
    for (int64_t c = 1; r * c <= threads; ++c) {
      const int64_t rows = EvenPart(s.m, (s.m + r - 1) / r, kTileRows),
                    columns = EvenPart(s.n, (s.n + c - 1) / c, kTileColumns);
      const double part = static_cast<double>(rows) * static_cast<double>(columns) +
                          kOfLine * static_cast<double>(rows + columns);
      const double work = static_cast<double>((batches * r * c + threads - 1) / threads) * part;
      if (work >= least) continue;
      least = work;
      out.row_parts = r;
      out.column_parts = c;
    }
  }
  out.items = batches * out.row_parts * out.column_parts;
  const int64_t rows = RoundUp((s.m + out.row_parts - 1) / out.row_parts, kTileRows),
                columns = RoundUp((s.n + out.column_parts - 1) / out.column_parts, kTileColumns);
  out.rows = EvenPart(rows, kBlockRows, kTileRows);
  out.columns = EvenPart(columns, kBlockColumns, kTileColumns);
  // B's tiles, and A's where they are packed.
  out.scratch = static_cast<size_t>(
      RoundUp(out.terms * (out.columns + (PacksA(s) ? out.rows : 0)), kTileColumns));
  return out;
}

void MultiplyGemmBlocks(const GemmSpec& s, const GemmBlocks& blocks, int64_t item, const float* a,
                        const float* b, float* c, const float* bias, const float* addend,
                        float* scratch) {
  assert(BestIsa() != Isa::kBaseline);
  const int64_t row_part = item / blocks.column_parts % blocks.row_parts,
                column_part = item % blocks.column_parts;
  const auto bound = [](int64_t count, int64_t part, int64_t parts, int64_t unit) {
    return std::min(count, part * RoundUp((count + parts - 1) / parts, unit));
  };
  const int64_t first_row = bound(s.m, row_part, blocks.row_parts, kTileRows),
                last_row = bound(s.m, row_part + 1, blocks.row_parts, kTileRows),
                first_column = bound(s.n, column_part, blocks.column_parts, kTileColumns),
                last_column = bound(s.n, column_part + 1, blocks.column_parts, kTileColumns);
  float* const left = scratch + blocks.terms * blocks.columns;
  const bool packs_a = PacksA(s);
  for (int64_t i = first_row; i < last_row; i += blocks.rows) {
    const int64_t rows = std::min(blocks.rows, last_row - i);
    for (int64_t p = 0; p < s.k; p += blocks.terms) {
      const int64_t depth = std::min(blocks.terms, s.k - p);
      const float* from = a + i * s.a.row + p * s.a.col;
      if (packs_a) PackRows(from, s.a, rows, depth, left);
      const bool start = p == 0;
      const GemmTarget to{s, s.accumulate || !start, c, start ? bias : nullptr,
                          start ? addend : nullptr};
      for (int64_t j = first_column; j < last_column; j += blocks.columns) {
        const int64_t columns = std::min(blocks.columns, last_column - j);
        MultiplyBlockOfTerms(to, {from, b + p * s.b.row + j * s.b.col, i, rows, j, columns, depth,
                                  packs_a, left, scratch});
      }
    }
  }
}

}  // namespace caesura
