// SPDX-License-Identifier: Apache-2.0
// What tiled attention and its gradient are made of, on top of float_tiles.h: rows of scores, heads
// as tiles, and which keys a strip of queries sees. All of it inlines into a loop under
// OnBestTiles.
//
// A tile is row-major with rows of a multiple of 16 floats, aligned to 64 bytes; its columns beyond
// the matrix are zero. The right matrix of S = Q K^T is kept as panels: for each 32 keys,
// [size][32].
#ifndef CAESURA_CORE_OPS_ATTENTION_ATTENTION_TILES_H_
#define CAESURA_CORE_OPS_ATTENTION_ATTENTION_TILES_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/ops/attention/attention_rows.h"
#include "core/kernels/simd/amx_tiles.h"
#include "core/kernels/simd/float_tiles.h"

namespace caesura::tiles {

inline constexpr int64_t kTileLanes = 16;  // rows and columns are padded to it: the widest vector
inline constexpr int64_t kStrip = 8;       // rows that are worked on together
inline constexpr int64_t kPanel = 32;      // keys of a panel
inline constexpr int64_t kQueries =
    64;  // rows of a tile, and keys of a block: its scores stay in the L2 cache
inline constexpr int64_t kKeys = 128;

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

inline int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
inline int64_t RoundDown(int64_t n, int64_t to) { return n / to * to; }

// Where a block of a product goes: to a tile, or on top of what is there.
template <typename R, bool kAdd>
struct AddTo {
  float* c;
  int64_t c_step;
  void operator()(int row, int vector, const typename R::Floats& sum) const {
    typename R::Floats& to = R::At(c + row * c_step + vector * R::kWidth);
    to = kAdd ? to + sum : sum;
  }
};

// C = A B, or C += A B where kAdd, for a strip of rows and `columns` columns, a multiple of 16.
template <typename R, bool kAcross, bool kAdd>
inline void MultiplyStrip(const float* a, int64_t a_step, const float* b, int64_t b_step,
                          int64_t depth, float* c, int64_t c_step, int64_t columns) {
  constexpr int64_t kColumns = R::kVectors * R::kWidth;
  for (int64_t r = 0; r < kStrip;
       r += R::kRows, c += R::kRows * c_step, a += R::kRows * (kAcross ? 1 : a_step)) {
    int64_t j = 0;
    for (; j + kColumns <= columns; j += kColumns) {
      MultiplyBlock<R, R::kRows, R::kVectors, kAcross>(a, a_step, b + j, b_step, depth,
                                                       AddTo<R, kAdd>{c + j, c_step});
    }
    if (kColumns > kTileLanes && j < columns) {
      MultiplyBlock<R, R::kRows, 1, kAcross>(a, a_step, b + j, b_step, depth,
                                             AddTo<R, kAdd>{c + j, c_step});
    }
  }
}

// x = e^x; 0 below about -87. To 2 units in the last place.
template <typename R>
inline void Exp(typename R::Floats& x) {
  using Floats = typename R::Floats;
  using Ints = typename R::Ints;
  constexpr float kRound =
      12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
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

// All elements of a vector as one: `op` puts its second argument, a vector or a number, into the
// first.
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

// [kPanel, padded] to [padded, kPanel].
inline void TransposePanel(const float* rows, int64_t padded, float* panel) {
  for (int64_t j = 0; j < kPanel; j += 4) {
    for (int64_t c = 0; c < padded; c += 4)
      TransposeFour(rows + j * padded + c, padded, panel + c * kPanel + j, kPanel);
  }
}

// The keys [0, total) of a head, and zeros, as panels of a right matrix. `rows` has room for those
// of one panel, or of all where they are kept.
inline void LoadPanels(DType dtype, const void* x, const HeadLayout& layout, int64_t head,
                       const Tile& rows, bool keep, float* panels) {
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
  int64_t from() const { return RoundDown(first, kTileLanes); }
  int64_t to() const { return RoundUp(last, kTileLanes); }
  bool empty() const { return first >= last; }
  StripKeys Within(int64_t begin, int64_t end) const {
    return {std::max(first, begin), std::min(last, end)};
  }
};

// A tile's place: rows [begin, end) of a query head, and what each strip of them may see.
struct QueryTile {
  int64_t b = 0, head = 0, begin = 0, end = 0;
  StripKeys all, strips[kQueries / kStrip];

  int64_t rows() const { return end - begin; }
  // Strips of a tensor of query heads.
  HeadRows Rows(const HeadLayout& layout) const {
    return {&layout, layout.Head(b, head), begin, end};
  }
  // The part of keys [from, to) that the strip of row r sees.
  StripKeys Keys(int64_t r, int64_t from, int64_t to) const {
    return strips[r / kStrip].Within(from, to);
  }
  // Tile i of a head with `tiles` of them, in an order in which an even share of them is an even
  // share of the work under a causal mask.
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

// In AMX's tiles.
inline int64_t AmxLines(int64_t n) { return RoundUp(n, amx::kLines) / amx::kLines; }
inline int64_t AmxDeep(int64_t n) { return RoundUp(n, amx::kDepth) / amx::kDepth; }

// Parts of a block of floats; counts what is taken where there is no block yet.
class Carver {
 public:
  explicit Carver(float* block) : block_(block) {}
  float* Take(int64_t count) {
    float* at = block_ == nullptr ? nullptr : block_ + taken_;
    taken_ += RoundUp(count, kTileLanes);
    return at;
  }
  amx::Tiles TakeTiles(int64_t lines, int64_t depth) {
    const int64_t deep = AmxDeep(depth), bytes = AmxLines(lines) * deep * amx::kTileBytes;
    return {reinterpret_cast<char*>(Take(bytes / static_cast<int64_t>(sizeof(float)))), deep};
  }
  int64_t taken() const { return taken_; }

 private:
  float* block_;
  int64_t taken_ = 0;
};

// One row's scores over [keys.from(), keys.to()), of which `row` is the first: -inf where the query
// may not look, the mask's bias added elsewhere.
inline void BiasRow(DType dtype, const AttentionSpec& s, const void* mask, int64_t mask_row,
                    const StripKeys& keys, const KeyRange& sees, float* row) {
  const int64_t from = keys.from(), to = keys.to();
  const int64_t first = std::clamp(sees.first, from, to), last = std::clamp(sees.last, first, to);
  for (int64_t j = from; j < first; ++j) row[j - from] = kMinusInfinity;
  for (int64_t j = last; j < to; ++j) row[j - from] = kMinusInfinity;
  if (s.mask != MaskKind::kNone) {
    AddMask(dtype, s, mask, mask_row + first * s.mask_strides[3], last - first,
            row + (first - from));
  }
}

// True if no sum of products of a key head's rows of `y` with its query heads' rows of `x` can be
// other than finite.
inline bool ProductsAreFinite(DType dtype, const AttentionSpec& s, int64_t b, int64_t key_head,
                              const void* x, const HeadLayout& x_layout, const void* y,
                              const HeadLayout& y_layout) {
  const auto magnitude = [&](const void* at, const HeadLayout& layout, int64_t head) -> double {
    return Magnitude(dtype, at, {&layout, layout.Head(b, head), 0, layout.positions});
  };
  const double of_y = magnitude(y, y_layout, key_head),
               depth = static_cast<double>(y_layout.size) + 1;
  bool finite = true;
  for (int64_t h = key_head * s.group(); finite && h < (key_head + 1) * s.group(); ++h) {
    finite = std::max(1.0, magnitude(x, x_layout, h)) * of_y * depth < 1e38;  // false for NaN, too
  }
  return finite;
}

// True if `s` says causal for a mask of nodes that one node stands for. What is hidden must then be
// looked at first: a value that is not finite reaches the queries before it even with a probability
// of 0, as do scores of +inf and NaN.
inline bool StandsForMask(const AttentionSpec& s, const AttentionSpec& whole) {
  return whole.mask != s.mask && s.nan_rows != NanRows::kByMask;
}

// --- where the products are AMX's ---

// True for products of such sizes: a tile's sixteen rows pay from that many queries on.
inline bool AmxServes(DType dtype, const AttentionSpec& s) {
  return dtype == DType::kBFloat16 && s.queries() >= amx::kLines && amx::Available();
}

inline amx::Halves HalvesOf(const HeadRows& rows, const void* x) {
  const HeadLayout& layout = *rows.layout;
  return {static_cast<const uint16_t*>(x) + rows.head + rows.first * layout.row_stride,
          layout.row_stride, layout.col_stride, rows.last - rows.first, layout.size};
}

// The keys of a block of a tile's scores, in whole tiles; the block is the first of them.
inline int64_t KeysOfBlock(const QueryTile& tile, int64_t block) {
  return std::min(kKeys, RoundUp(tile.all.last - block, amx::kDepth));
}

// The scores of a block, times `scale`.
template <typename R>
inline void ScaleScores(const QueryTile& tile, int64_t block, float scale, float* scores) {
  const int64_t keys = KeysOfBlock(tile, block);
  for (int64_t r = 0; r < tile.rows(); ++r) {
    for (int64_t j = 0; j < keys; j += R::kWidth) R::At(scores + r * kKeys + j) *= scale;
  }
}

// Puts zeros for the keys of a block that the strips do not see, and after the tile's rows.
inline void Blank(const QueryTile& tile, int64_t block, float* scores) {
  const int64_t keys = KeysOfBlock(tile, block);
  for (int64_t r = 0; r < RoundUp(tile.rows(), amx::kDepth); ++r) {
    StripKeys seen = r < tile.rows() ? tile.Keys(r, block, block + kKeys) : StripKeys();
    if (seen.empty()) seen = {block, block};
    float* row = scores + r * kKeys;
    std::fill(row, row + (seen.from() - block), 0.0f);
    std::fill(row + (seen.to() - block), row + keys, 0.0f);
  }
}

}  // namespace caesura::tiles

#endif  // CAESURA_CORE_OPS_ATTENTION_ATTENTION_TILES_H_
