// SPDX-License-Identifier: Apache-2.0
// What tiled attention and its gradient are made of: float tiles of whole vectors, their products, and moves between
// them and tensors of any layout. All of it inlines into a loop under OnBestIsa.
//
// A tile is row-major with rows of a multiple of 16 floats, aligned to 64 bytes; its columns beyond the matrix are
// zero. The right matrix of S = Q K^T is kept as panels: for each 32 keys, [size][32].
#ifndef CAESURA_CORE_KERNELS_CPU_ATTENTION_TILES_H_
#define CAESURA_CORE_KERNELS_CPU_ATTENTION_TILES_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/kernels/cpu/attention_rows.h"
#include "core/kernels/cpu/best_isa.h"

namespace caesura::tiles {

inline constexpr int64_t kLanes = 16;    // rows and columns are padded to it: the widest vector
inline constexpr int64_t kStrip = 8;     // rows that are worked on together
inline constexpr int64_t kPanel = 32;    // keys of a panel
inline constexpr int64_t kQueries = 64;  // rows of a tile, and keys of a block: its scores stay in the L2 cache
inline constexpr int64_t kKeys = 128;

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

inline int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
inline int64_t RoundDown(int64_t n, int64_t to) { return n / to * to; }

// Vectors of an instruction set, and how many rows and vectors of a product fit into its registers.
struct Vectors64 {
  using Floats = float __attribute__((vector_size(64), may_alias));
  using Ints = int32_t __attribute__((vector_size(64), may_alias));
  static constexpr int kRows = 8;
};
struct Vectors32 {
  using Floats = float __attribute__((vector_size(32), may_alias));
  using Ints = int32_t __attribute__((vector_size(32), may_alias));
  static constexpr int kRows = 4;
};
struct Vectors16 {
  using Floats = float __attribute__((vector_size(16), may_alias));
  using Ints = int32_t __attribute__((vector_size(16), may_alias));
  static constexpr int kRows = 4;
};
template <typename Vectors>
struct Registers : Vectors {
  using typename Vectors::Floats;
  static constexpr int64_t kWidth = sizeof(Floats) / sizeof(float);
  static constexpr int kVectors = 2;

  static Floats& At(float* p) { return *reinterpret_cast<Floats*>(p); }
  static const Floats& At(const float* p) { return *reinterpret_cast<const Floats*>(p); }
};

// fn(registers) on the machine's widest instruction set; `fn` is compiled once for each, with its own registers.
template <typename Fn>
void OnBestTiles(Fn fn) {
  auto wide = [&] { fn(Registers<Vectors64>()); };
  auto middle = [&] { fn(Registers<Vectors32>()); };
  switch (BestIsa()) {
    case Isa::kX86V4: return isa_internal::RunV4(wide);
    case Isa::kX86V3: return isa_internal::RunV3(middle);
    case Isa::kBaseline: return fn(Registers<Vectors16>());
  }
}

// C = A B, or C += A B where kAdd, for a block that stays in registers. A(r, k) is a[r * a_step + k], or
// a[k * a_step + r] where kAcross.
template <typename R, int kVectors, bool kAcross, bool kAdd>
inline void MultiplyBlock(const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t depth, float* c,
                          int64_t c_step) {
  typename R::Floats sum[R::kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < R::kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = typename R::Floats{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    typename R::Floats right[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) right[v] = R::At(b + k * b_step + v * R::kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < R::kRows; ++r) {
      const float left = kAcross ? a[k * a_step + r] : a[r * a_step + k];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R::kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      typename R::Floats& to = R::At(c + r * c_step + v * R::kWidth);
      to = kAdd ? to + sum[r][v] : sum[r][v];
    }
  }
}

// The same for a strip of rows and `columns` columns, a multiple of 16.
template <typename R, bool kAcross, bool kAdd>
inline void MultiplyStrip(const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t depth, float* c,
                          int64_t c_step, int64_t columns) {
  constexpr int64_t kColumns = R::kVectors * R::kWidth;
  for (int64_t r = 0; r < kStrip; r += R::kRows, c += R::kRows * c_step, a += R::kRows * (kAcross ? 1 : a_step)) {
    int64_t j = 0;
    for (; j + kColumns <= columns; j += kColumns) {
      MultiplyBlock<R, R::kVectors, kAcross, kAdd>(a, a_step, b + j, b_step, depth, c + j, c_step);
    }
    if (kColumns > kLanes && j < columns) {
      MultiplyBlock<R, 1, kAcross, kAdd>(a, a_step, b + j, b_step, depth, c + j, c_step);
    }
  }
}

// x = e^x; 0 below about -87. To 2 units in the last place.
template <typename R>
inline void Exp(typename R::Floats& x) {
  using Floats = typename R::Floats;
  using Ints = typename R::Ints;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const Floats powers = x * 1.44269504f;
  const Floats cut = powers < -126.0f ? Floats{} - 126.0f : powers;  // NaN stays
  const Floats shifted = cut + kRound;
  const Floats f = cut - (shifted - kRound);
  Floats e = f * 1.534581181e-4f + 1.339993122e-3f;
  e = e * f + 9.618488958e-3f;
  e = e * f + 5.550328777e-2f;
  e = e * f + 2.402264689e-1f;
  e = e * f + 6.931472057e-1f;
  e = e * f + 1.0f;
  const Ints bits = reinterpret_cast<Ints>(e) + (reinterpret_cast<Ints>(shifted) << 23);
  x = powers < -126.0f ? Floats{} : reinterpret_cast<Floats>(bits);
}

// All elements of a vector as one: `op` puts its second argument, a vector or a number, into the first.
template <typename Floats, typename Op>
inline float Reduce(const Floats& x, Op op) {
  if constexpr (sizeof(Floats) == 64) {
    auto half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7);
    op(half, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
    return Reduce(half, op);
  } else if constexpr (sizeof(Floats) == 32) {
    auto half = __builtin_shufflevector(x, x, 0, 1, 2, 3);
    op(half, __builtin_shufflevector(x, x, 4, 5, 6, 7));
    return Reduce(half, op);
  } else {
    float even = x[0], odd = x[1];
    op(even, x[2]);
    op(odd, x[3]);
    op(even, odd);
    return even;
  }
}
template <typename Floats>
inline float Sum(const Floats& x) {
  return Reduce(x, [](auto& a, const auto& b) { a += b; });
}
template <typename Floats>
inline float Max(const Floats& x) {
  return Reduce(x, [](auto& a, const auto& b) { a = b < a ? a : b; });
}

// [kPanel, padded] to [padded, kPanel], by blocks of 4 x 4.
inline void TransposePanel(const float* rows, int64_t padded, float* panel) {
  using Four = float __attribute__((vector_size(16), may_alias));
  auto load = [](const float* p) { return *reinterpret_cast<const Four*>(p); };
  auto store = [](float* p, const Four& x) { *reinterpret_cast<Four*>(p) = x; };
  for (int64_t j = 0; j < kPanel; j += 4) {
    for (int64_t c = 0; c < padded; c += 4) {
      const float* from = rows + j * padded + c;
      const Four r0 = load(from), r1 = load(from + padded);
      const Four r2 = load(from + 2 * padded), r3 = load(from + 3 * padded);
      const Four low0 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), low1 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
      const Four high0 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
      const Four high1 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
      float* to = panel + c * kPanel + j;
      store(to, __builtin_shufflevector(low0, low1, 0, 1, 4, 5));
      store(to + kPanel, __builtin_shufflevector(low0, low1, 2, 3, 6, 7));
      store(to + 2 * kPanel, __builtin_shufflevector(high0, high1, 0, 1, 4, 5));
      store(to + 3 * kPanel, __builtin_shufflevector(high0, high1, 2, 3, 6, 7));
    }
  }
}

// The keys [0, total) of a head, and zeros, as panels of a right matrix. `rows` has room for those of one panel, or of
// all where they are kept.
inline void LoadPanels(DType dtype, const void* x, const HeadLayout& layout, int64_t head, const Tile& rows, bool keep,
                       float* panels) {
  for (int64_t j = 0; j < layout.positions; j += kPanel) {
    const Tile panel = {rows.at + (keep ? j * rows.width : 0), kPanel, rows.width};
    LoadRows(dtype, x, {&layout, head, j, std::min(layout.positions, j + kPanel)}, 1.0f, panel);
    TransposePanel(panel.at, panel.width, panels + j * panel.width);
  }
}

// The keys [first, last) that some row of a strip may see.
struct StripKeys {
  int64_t first = 0, last = 0;
  // In whole vectors.
  int64_t from() const { return RoundDown(first, kLanes); }
  int64_t to() const { return RoundUp(last, kLanes); }
  bool empty() const { return first >= last; }
  StripKeys Within(int64_t begin, int64_t end) const { return {std::max(first, begin), std::min(last, end)}; }
};

// A tile's place: rows [begin, end) of a query head, and what each strip of them may see.
struct QueryTile {
  int64_t b = 0, head = 0, begin = 0, end = 0;
  StripKeys all, strips[kQueries / kStrip];

  int64_t rows() const { return end - begin; }
  // Tile i of a head with `tiles` of them, in an order in which an even share of them is an even share of the work
  // under a causal mask.
  void Place(const AttentionSpec& s, int64_t i, int64_t tiles, const int64_t* lengths) {
    begin = (i % 2 == 0 ? i / 2 : tiles - 1 - i / 2) * kQueries;
    end = std::min(begin + kQueries, s.queries());
    for (int64_t r = begin; r < end; r += kStrip) {
      strips[(r - begin) / kStrip] = {s.Sees(b, r, lengths).first,
                                      s.Sees(b, std::min(r + kStrip, end) - 1, lengths).last};
    }
    all = {strips[0].first, strips[(rows() - 1) / kStrip].last};
  }
};
inline int64_t TilesOf(const AttentionSpec& s) { return (s.queries() + kQueries - 1) / kQueries; }

// Parts of a block of floats; counts what is taken where there is no block yet.
class Carver {
 public:
  explicit Carver(float* block) : block_(block) {}
  float* Take(int64_t count) {
    float* at = block_ == nullptr ? nullptr : block_ + taken_;
    taken_ += RoundUp(count, kLanes);
    return at;
  }
  int64_t taken() const { return taken_; }

 private:
  float* block_;
  int64_t taken_ = 0;
};

// One row's scores over [keys.from(), keys.to()), of which `row` is the first: -inf where the query may not look, the
// mask's bias added elsewhere.
inline void BiasRow(DType dtype, const AttentionSpec& s, const void* mask, int64_t mask_row, const StripKeys& keys,
                    const KeyRange& sees, float* row) {
  const int64_t from = keys.from(), to = keys.to();
  const int64_t first = std::clamp(sees.first, from, to), last = std::clamp(sees.last, first, to);
  for (int64_t j = from; j < first; ++j) row[j - from] = kMinusInfinity;
  for (int64_t j = last; j < to; ++j) row[j - from] = kMinusInfinity;
  if (s.mask != MaskKind::kNone) {
    AddMask(dtype, s, mask, mask_row + first * s.mask_strides[3], last - first, row + (first - from));
  }
}

}  // namespace caesura::tiles

#endif  // CAESURA_CORE_KERNELS_CPU_ATTENTION_TILES_H_
