// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/gemm/gemm_tiles.h"

#include <algorithm>

#include "core/kernels/gemm/gemm_target.h"
#include "core/kernels/simd/float_tiles.h"

namespace caesura {
namespace {

using tiles::MultiplyBlock;

constexpr int64_t kPanel = 32;  // columns that are worked on together
constexpr int64_t kPanelDepth =
    192;  // of a panel, at most: it stays in the L1 cache, and sums in blocks are more exact
constexpr int64_t kFewRows = 8;

// to[p][j] = b(p, j) for `depth` x `columns`, zeros after them.
inline void PackPanel(const float* b, MatrixStrides bs, int64_t depth, int64_t columns, float* to) {
  int64_t j = 0, whole = 0;
  if (bs.row == 1) {
    whole = depth / 4 * 4;
    for (; j + 4 <= columns; j += 4) {
      for (int64_t p = 0; p < whole; p += 4) {
        tiles::TransposeFour(b + j * bs.col + p, bs.col, to + p * kPanel + j, kPanel);
      }
    }
  }
  for (int64_t p = 0; p < depth; ++p) {
    float* row = to + p * kPanel;
    for (int64_t i = p < whole ? j : 0; i < columns; ++i) row[i] = b[p * bs.row + i * bs.col];
    std::fill(row + columns, row + kPanel, 0.0f);
  }
}

// One panel of B under rows [first, last) of A, by as many rows at a time as are left. A(i, p) as
// MultiplyBlock reads it.
template <typename R, int kRows, bool kAcross>
inline void MultiplyPanel(const GemmTarget<float>& to, int64_t first, int64_t last, int64_t column,
                          int64_t columns, const float* a, int64_t a_step, const float* b,
                          int64_t b_step, int64_t depth) {
  // Asked once: FinishSum asks for each vector, which is 3% of a tiny network's whole step.
  const bool plain = to.s.alpha == 1 && !to.add && to.bias == nullptr && to.addend == nullptr;
  for (; first + kRows <= last; first += kRows) {
    const float* rows = a + first * (kAcross ? 1 : a_step);
    const auto multiply = [&](auto store) {  // store(row, column of the panel, sum)
      int64_t j = 0;
      const auto put = [&](int r, int v, const typename R::Floats& sum) {
        store(r, j + v * R::kWidth, sum);
      };
      for (; j + R::kWidth < columns; j += R::kVectors * R::kWidth) {
        MultiplyBlock<R, kRows, R::kVectors, kAcross>(rows, a_step, b + j, b_step, depth, put);
      }
      if (j < columns) MultiplyBlock<R, kRows, 1, kAcross>(rows, a_step, b + j, b_step, depth, put);
    };
    if (columns % R::kWidth == 0) {  // from the registers to C
      float* const c = to.c + first * to.s.c.row + column;
      multiply([&, c, step = to.s.c.row](int r, int64_t j, const typename R::Floats& sum) {
        if (plain) return R::Store(c + r * step + j, sum);
        WriteVector<R>(to, (first + r) * step + column + j, column + j, sum);
      });
    } else {
      alignas(64) float sums[kRows * kPanel];
      multiply([&](int r, int64_t j, const typename R::Floats& sum) {
        R::Store(sums + r * kPanel + j, sum);
      });
      WriteBlock<R>(to, sums, kPanel, first, kRows, column, columns);
    }
  }
  if constexpr (kRows > 1) {
    if (first < last) {
      MultiplyPanel<R, kRows / 2, kAcross>(to, first, last, column, columns, a, a_step, b, b_step,
                                           depth);
    }
  }
}

// c(i, j) as a dot product: for a few rows, over which turning B's contiguous columns would not
// pay.
template <typename R>
inline void MultiplyColumns(const GemmSpec& s, int64_t first, int64_t last, const float* a,
                            const float* b, float* c, const float* bias, const float* addend) {
  using Four = tiles::Registers<tiles::Vectors16>;
  alignas(64) float sums[kFewRows * kPanel];
  const GemmTarget<float> to{s, s.accumulate, c, bias, addend};
  const int64_t whole = s.k / R::kWidth * R::kWidth;
  for (int64_t j0 = 0; j0 < s.n; j0 += kPanel) {
    const int64_t columns = std::min(kPanel, s.n - j0);
    for (int64_t j = 0; j < columns; j += 4) {
      const float* right[4];  // after the last column: that one again
      for (int64_t v = 0; v < 4; ++v) right[v] = b + (j0 + std::min(j + v, columns - 1)) * s.b.col;
      for (int64_t i = first; i < last; ++i) {
        const float* left = a + i * s.a.row;
        typename R::Floats dot[4] = {};
        for (int64_t p = 0; p < whole; p += R::kWidth) {
          const typename R::Floats x = R::AtLoose(left + p).floats;
          for (int v = 0; v < 4; ++v) dot[v] += x * R::AtLoose(right[v] + p).floats;
        }
        alignas(64) float lanes[4][R::kWidth], folded[4][4], turned[4][4];
        for (int v = 0; v < 4; ++v) {
          R::At(lanes[v]) = dot[v];
          Four::Floats fold = Four::At(lanes[v]);
          for (int64_t l = 4; l < R::kWidth; l += 4) fold += Four::At(lanes[v] + l);
          Four::At(folded[v]) = fold;
        }
        tiles::TransposeFour(folded[0], 4, turned[0], 4);
        float* sum = sums + (i - first) * kPanel + j;
        Four::At(sum) = (Four::At(turned[0]) + Four::At(turned[1])) +
                        (Four::At(turned[2]) + Four::At(turned[3]));
        for (int64_t p = whole; p < s.k; ++p) {
          for (int v = 0; v < 4; ++v) sum[v] += left[p] * right[v][p];
        }
      }
    }
    WriteBlock<R>(to, sums, kPanel, first, last - first, j0, columns);
  }
}

// A(i, p) as MultiplyBlock reads it.
template <typename R, bool kAcross>
inline void MultiplyTiles(const GemmSpec& s, int64_t first, int64_t last, const float* a,
                          const float* b, float* c, const float* bias, const float* addend) {
  alignas(64) float panel[kPanelDepth * kPanel];
  const int64_t blocks = std::max<int64_t>(1, (s.k + kPanelDepth - 1) / kPanelDepth),
                even = (s.k + blocks - 1) / blocks;
  for (int64_t j = 0; j < s.n; j += kPanel) {
    const int64_t columns = std::min(kPanel, s.n - j);
    int64_t p = 0;
    do {
      const int64_t depth = std::min(even, s.k - p);
      const float* right = b + p * s.b.row + j * s.b.col;
      int64_t right_step = s.b.row;
      if (s.b.col != 1 || columns % R::kWidth != 0) {
        PackPanel(right, s.b, depth, columns, panel);
        right = panel;
        right_step = kPanel;
      }
      const bool start = p == 0;
      const GemmTarget<float> to{s, s.accumulate || !start, c, start ? bias : nullptr,
                                 start ? addend : nullptr};
      MultiplyPanel<R, R::kRows, kAcross>(to, first, last, j, columns, a + p * s.a.col,
                                          kAcross ? s.a.col : s.a.row, right, right_step, depth);
      p += std::max<int64_t>(1, even);
    } while (p < s.k);
  }
}

}  // namespace

void MultiplyFloatRows(const GemmSpec& s, int64_t first, int64_t last, const float* a,
                       const float* b, float* c, const float* bias, const float* addend) {
  // A loop for each case: GCC takes a time for each that grows with the square of its length.
  if (s.m <= kFewRows && s.b.row == 1 && s.a.col == 1) {
    tiles::OnBestTiles([&](auto registers) {
      MultiplyColumns<decltype(registers)>(s, first, last, a, b, c, bias, addend);
    });
  } else if (s.a.col == 1) {
    tiles::OnBestTiles([&](auto registers) {
      MultiplyTiles<decltype(registers), false>(s, first, last, a, b, c, bias, addend);
    });
  } else {
    tiles::OnBestTiles([&](auto registers) {
      MultiplyTiles<decltype(registers), true>(s, first, last, a, b, c, bias, addend);
    });
  }
}

}  // namespace caesura
