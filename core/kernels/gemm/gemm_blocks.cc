// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/gemm/gemm_blocks.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>
#include <type_traits>

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

// As tiles::Registers, for float64.
struct DoubleRegisters {
  using Floats = double __attribute__((vector_size(32), may_alias));
  struct __attribute__((packed, may_alias)) Loose {
    Floats floats;
  };
  static constexpr int64_t kWidth = sizeof(Floats) / sizeof(double);

  static const Loose& AtLoose(const double* p) { return *reinterpret_cast<const Loose*>(p); }
  static void Store(double* p, const Floats& x) { reinterpret_cast<Loose*>(p)->floats = x; }
};
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, float>, tiles::Registers<tiles::Vectors32>,
                                DoubleRegisters>;

// A tile of C: 12 of 16 registers hold its sums.
constexpr int64_t kTileRows = 6;
template <typename T>
constexpr int64_t kTileColumns = 2 * Wide<T>::kWidth;
constexpr int64_t kBlockRows = 480;  // of C and A: C stays in a cache from block to block of terms
constexpr int64_t kBlockColumns = 256;  // of C and B, in float32: B's stay in the L2 cache
// Rows of A that so many bytes separate share the lines of the L1 cache: they are packed.
constexpr int64_t kFarApart = 4096;

int64_t RoundUp(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// The length of even parts of `count` of at most `most`, in whole units.
int64_t EvenPart(int64_t count, int64_t most, int64_t unit) {
  const int64_t parts = (count + most - 1) / most;
  return RoundUp((count + parts - 1) / parts, unit);
}

// to[j][i] = from[i][j] for 8 x 8 floats.
inline void TransposeEight(const float* from, int64_t from_step, float* to, int64_t to_step) {
  using Eight = Wide<float>;
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
template <typename T>
CAESURA_AVX2 void PackRows(const T* a, MatrixStrides as, int64_t rows, int64_t depth, T* to) {
  constexpr int64_t kLines = 4;  // at a time: a line of the cache holds rows of several tiles
  for (int64_t p0 = 0; p0 < depth; p0 += kLines) {
    const int64_t end = std::min(depth, p0 + kLines);
    for (int64_t i = 0; i < rows; i += kTileRows) {
      const T* from = a + i * as.row + p0 * as.col;
      T* tile = to + i * depth + p0 * kTileRows;
      const int64_t count = std::min(kTileRows, rows - i);
      int64_t r = 0;
      if constexpr (std::is_same_v<T, float>) {
        if (as.col == 1 && count == kTileRows && end == p0 + kLines) {
          tiles::TransposeFour(from, as.row, tile, kTileRows);
          r = 4;
        }
      }
      for (int64_t p = p0; p < end; ++p, from += as.col, tile += kTileRows) {
        if (as.row == 1 && count == kTileRows) {
          std::memcpy(tile, from, kTileRows * sizeof(T));
          continue;
        }
        for (int64_t q = r; q < count; ++q) tile[q] = from[q * as.row];
        std::fill(tile + count, tile + kTileRows, T(0));
      }
    }
  }
}

// A tile of B: to[p][j] = b(p, j) for kTileColumns, zeros after the last one.
template <typename T>
CAESURA_AVX2 void PackColumns(const T* b, MatrixStrides bs, int64_t depth, int64_t columns, T* to) {
  constexpr int64_t kLine = 64 / sizeof(T);  // elements of a line of the cache
  constexpr int64_t kWidth = 8, kStep = kTileColumns<T>;
  int64_t j = 0;
  for (; bs.row == 1 && j + kWidth <= columns; j += kWidth) {
    const T* from = b + j * bs.col;
    int64_t p = 0;
    for (; p + kWidth <= depth; p += kWidth) {
      // The columns of the next tile: they come from far.
      for (int64_t i = 0; p % kLine == 0 && i < kWidth; ++i)
        __builtin_prefetch(from + (kStep + i) * bs.col + p);
      if constexpr (std::is_same_v<T, float>) {
        TransposeEight(from + p, bs.col, to + p * kStep + j, kStep);
      } else {
        for (int64_t i = 0; i < kWidth; ++i) {
          for (int64_t q = 0; q < kWidth; ++q)
            to[(p + q) * kStep + j + i] = from[i * bs.col + p + q];
        }
      }
    }
    for (; p < depth; ++p) {
      for (int64_t i = 0; i < kWidth; ++i) to[p * kStep + j + i] = from[i * bs.col + p];
    }
  }
  for (int64_t p = 0; p < depth; ++p) {
    T* row = to + p * kStep;
    for (int64_t i = j; i < columns; ++i) row[i] = b[p * bs.row + i * bs.col];
    std::fill(row + columns, row + kStep, T(0));
  }
}

// Whole tiles of a B whose rows are contiguous. By rows: each lies in other pages of memory.
template <typename T>
CAESURA_AVX2 void PackLines(const T* b, int64_t step, int64_t depth, int64_t tiles, T* to) {
  using R = Wide<T>;
  constexpr int64_t kAhead = 4;  // rows that are fetched before they are needed
  constexpr int64_t kStep = kTileColumns<T>;
  for (int64_t p = 0; p < depth; ++p, b += step, to += kStep) {
    T* tile = to;
    for (int64_t j = 0; j < tiles * kStep; j += kStep, tile += depth * kStep) {
      __builtin_prefetch(b + kAhead * step + j);
      R::Store(tile, R::AtLoose(b + j).floats);
      R::Store(tile + R::kWidth, R::AtLoose(b + j + R::kWidth).floats);
    }
  }
}

// The factors of a tile of C, over the same terms. A(r, p) is a[r * a_step + p], or
// a[p * a_step + r] where the kernel reads across.
template <typename T>
struct TileFactors {
  const T* a;
  int64_t a_step;
  const T* b;
  int64_t b_step, depth;
};

// kRows of C from `row` and `column` on, of which `columns` exist. A function by itself: in a
// larger one its steps do not stay in registers.
template <typename T, int kRows, bool kAcross>
CAESURA_AVX2 [[gnu::noinline]] void MultiplyTile(const GemmTarget<T>& to, const TileFactors<T>& f,
                                                 int64_t row, int64_t column, int64_t columns) {
  using R = Wide<T>;
  using Floats = typename R::Floats;
  constexpr int64_t kColumns = kTileColumns<T>;
  constexpr int64_t kAhead = 16;  // rows of B that are fetched before they are needed
  const int64_t place = row * to.s.c.row + column, a_step = f.a_step, b_step = f.b_step;
  for (int64_t r = 0; r < kRows; ++r) {
    __builtin_prefetch(to.c + place + r * to.s.c.row);
    __builtin_prefetch(to.c + place + r * to.s.c.row + kColumns - 1);
  }
  const T *a = f.a, *b = f.b;
  Floats sum[kRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = Floats{};
#pragma GCC unroll 4
  for (int64_t p = 0; p < f.depth; ++p, b += b_step) {
    __builtin_prefetch(b + kAhead * b_step);
    const Floats right[2] = {R::AtLoose(b).floats, R::AtLoose(b + R::kWidth).floats};
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const T left = a[kAcross ? r : r * a_step];
      sum[r][0] += left * right[0];
      sum[r][1] += left * right[1];
    }
    a += kAcross ? a_step : 1;
  }
  const bool plain = to.s.alpha == 1 && to.bias == nullptr && to.addend == nullptr;
  if (plain && columns == kColumns) {
    T* c = to.c + place;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r, c += to.s.c.row) {
      if (to.add) {
        sum[r][0] += R::AtLoose(c).floats;
        sum[r][1] += R::AtLoose(c + R::kWidth).floats;
      }
      R::Store(c, sum[r][0]);
      R::Store(c + R::kWidth, sum[r][1]);
    }
    return;
  }
  alignas(64) T sums[kRows * kColumns];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    R::Store(sums + r * kColumns, sum[r][0]);
    R::Store(sums + r * kColumns + R::kWidth, sum[r][1]);
  }
  WriteBlock<R>(to, sums, kColumns, row, kRows, column, columns);
}

// A block of terms for the part of C that begins at `row` and `column`; `a` and `b` begin there,
// too. A's tiles are in `left` where they are packed, B's go to `right`.
template <typename T>
struct Block {
  const T *a, *b;
  int64_t row, rows, column, columns, depth;
  bool packs_a;
  const T* left;
  T* right;
};

template <typename T>
using TileFunction = void (*)(const GemmTarget<T>&, const TileFactors<T>&, int64_t, int64_t,
                              int64_t);

template <typename T, bool kAcross>
TileFunction<T> TileOf(int64_t rows) {
  constexpr TileFunction<T> kTiles[] = {MultiplyTile<T, 1, kAcross>, MultiplyTile<T, 2, kAcross>,
                                        MultiplyTile<T, 3, kAcross>, MultiplyTile<T, 4, kAcross>,
                                        MultiplyTile<T, 5, kAcross>, MultiplyTile<T, 6, kAcross>};
  return kTiles[std::min(rows, kTileRows) - 1];
}

template <typename T>
void MultiplyBlockOfTerms(const GemmTarget<T>& to, const Block<T>& x) {
  constexpr int64_t kColumns = kTileColumns<T>;
  const MatrixStrides as = to.s.a, bs = to.s.b;
  // One line of tiles takes whole tiles of B as they lie.
  const int64_t whole = bs.col == 1 ? x.columns / kColumns : 0;
  const bool direct = whole > 0 && x.rows <= kTileRows;
  if (!direct) PackLines(x.b, bs.row, x.depth, whole, x.right);
  for (int64_t j = whole * kColumns; j < x.columns; j += kColumns) {
    PackColumns(x.b + j * bs.col, bs, x.depth, std::min(kColumns, x.columns - j),
                x.right + j * x.depth);
  }
  for (int64_t i = 0; i < x.rows; i += kTileRows) {
    const TileFunction<T> tile =
        x.packs_a ? TileOf<T, true>(x.rows - i) : TileOf<T, false>(x.rows - i);
    TileFactors<T> f{x.packs_a ? x.left + i * x.depth : x.a + i * as.row,
                     x.packs_a ? kTileRows : as.row, nullptr, kColumns, x.depth};
    for (int64_t j = 0; j < x.columns; j += kColumns) {
      const bool lies = direct && j < whole * kColumns;
      f.b = lies ? x.b + j : x.right + j * x.depth;
      f.b_step = lies ? bs.row : kColumns;
      tile(to, f, x.row + i, x.column + j, std::min(kColumns, x.columns - j));
    }
  }
}

int64_t TileColumns(DType dtype) {
  return dtype == DType::kFloat32 ? kTileColumns<float> : kTileColumns<double>;
}

bool PacksA(const GemmSpec& s) {
  return s.a.col != 1 || s.a.row * static_cast<int64_t>(DTypeSize(s.dtype)) % kFarApart == 0;
}

}  // namespace

GemmBlocks GemmBlocks::Plan(const GemmSpec& s, int64_t batches, int64_t terms, int threads) {
  assert(s.m > 0 && s.n > 0 && s.k > 0);
  GemmBlocks out;
  const int64_t tile_columns = TileColumns(s.dtype);
  out.terms = std::min(terms, s.k);
  // As many parts as give the longest thread the least work: multiply-adds, and lines of A and B
  // that each part reads by itself.
  constexpr double kOfLine = 8;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t r = 1; r <= threads; ++r) {
    for (int64_t c = 1; r * c <= threads; ++c) {
      const int64_t rows = EvenPart(s.m, (s.m + r - 1) / r, kTileRows),
                    columns = EvenPart(s.n, (s.n + c - 1) / c, tile_columns);
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
                columns = RoundUp((s.n + out.column_parts - 1) / out.column_parts, tile_columns);
  out.rows = EvenPart(rows, kBlockRows, kTileRows);
  out.columns = EvenPart(
      columns, kBlockColumns * int64_t{sizeof(float)} / static_cast<int64_t>(DTypeSize(s.dtype)),
      tile_columns);
  // B's tiles, and A's where they are packed.
  out.scratch = static_cast<size_t>(
      RoundUp(out.terms * (out.columns + (PacksA(s) ? out.rows : 0)), tile_columns));
  return out;
}

template <typename T>
void MultiplyGemmBlocks(const GemmSpec& s, const GemmBlocks& blocks, int64_t item, const T* a,
                        const T* b, T* c, const T* bias, const T* addend, T* scratch) {
  assert(BestIsa() != Isa::kBaseline);
  const int64_t row_part = item / blocks.column_parts % blocks.row_parts,
                column_part = item % blocks.column_parts;
  const auto bound = [](int64_t count, int64_t part, int64_t parts, int64_t unit) {
    return std::min(count, part * RoundUp((count + parts - 1) / parts, unit));
  };
  const int64_t first_row = bound(s.m, row_part, blocks.row_parts, kTileRows),
                last_row = bound(s.m, row_part + 1, blocks.row_parts, kTileRows),
                first_column = bound(s.n, column_part, blocks.column_parts, kTileColumns<T>),
                last_column = bound(s.n, column_part + 1, blocks.column_parts, kTileColumns<T>);
  T* const left = scratch + blocks.terms * blocks.columns;
  const bool packs_a = PacksA(s);
  for (int64_t i = first_row; i < last_row; i += blocks.rows) {
    const int64_t rows = std::min(blocks.rows, last_row - i);
    for (int64_t p = 0; p < s.k; p += blocks.terms) {
      const int64_t depth = std::min(blocks.terms, s.k - p);
      const T* from = a + i * s.a.row + p * s.a.col;
      if (packs_a) PackRows(from, s.a, rows, depth, left);
      const bool start = p == 0;
      const GemmTarget<T> to{s, s.accumulate || !start, c, start ? bias : nullptr,
                             start ? addend : nullptr};
      for (int64_t j = first_column; j < last_column; j += blocks.columns) {
        const int64_t columns = std::min(blocks.columns, last_column - j);
        MultiplyBlockOfTerms<T>(to, {from, b + p * s.b.row + j * s.b.col, i, rows, j, columns,
                                     depth, packs_a, left, scratch});
      }
    }
  }
}

template void MultiplyGemmBlocks(const GemmSpec&, const GemmBlocks&, int64_t, const float*,
                                 const float*, float*, const float*, const float*, float*);
template void MultiplyGemmBlocks(const GemmSpec&, const GemmBlocks&, int64_t, const double*,
                                 const double*, double*, const double*, const double*, double*);

}  // namespace caesura
