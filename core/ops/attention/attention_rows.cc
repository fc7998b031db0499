// SPDX-License-Identifier: Apache-2.0
#include "core/ops/attention/attention_rows.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "core/kernels/simd/arithmetic_type.h"
#include "core/kernels/simd/best_isa.h"

namespace caesura::tiles {
namespace {

// fn(tag) on the best instruction set, with the tag of a dtype that tiles can be filled from.
template <typename Fn>
void ForDType(DType dtype, Fn fn) {
  DispatchDType<float, Float16, BFloat16>(dtype, [&](auto tag) { OnBestIsa([&] { fn(tag); }); });
}

}  // namespace

void LoadRows(DType dtype, const void* x, const HeadRows& rows, float scale, const Tile& tile) {
  ForDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const HeadLayout& layout = *rows.layout;
    const T* from = static_cast<const T*>(x) + rows.head + rows.first * layout.row_stride;
    const int64_t size = layout.size, step = layout.col_stride;
    float* to = tile.at;
    for (int64_t i = rows.first; i < rows.last; ++i, from += layout.row_stride, to += tile.width) {
      if (step == 1) {
        for (int64_t c = 0; c < size; ++c) to[c] = scale * Widen(from[c]);
      } else {
        for (int64_t c = 0; c < size; ++c) to[c] = scale * Widen(from[c * step]);
      }
      for (int64_t c = size; c < tile.width; ++c) to[c] = 0;
    }
    std::fill(to, tile.at + tile.rows * tile.width, 0.0f);
  });
}

void StoreRows(DType dtype, const Tile& tile, float scale, const HeadRows& rows, void* y) {
  ForDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const HeadLayout& layout = *rows.layout;
    T* to = static_cast<T*>(y) + rows.head + rows.first * layout.row_stride;
    const int64_t size = layout.size, step = layout.col_stride;
    const float* from = tile.at;
    for (int64_t i = rows.first; i < rows.last; ++i, from += tile.width, to += layout.row_stride) {
      if (step == 1) {
        for (int64_t c = 0; c < size; ++c) to[c] = Narrow<T>(scale * from[c]);
      } else {
        for (int64_t c = 0; c < size; ++c) to[c * step] = Narrow<T>(scale * from[c]);
      }
    }
  });
}

void AddMask(DType dtype, const AttentionSpec& s, const void* mask, int64_t at, int64_t count,
             float* scores) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  const int64_t step = s.mask_strides[3];
  if (s.mask == MaskKind::kBool) {
    OnBestIsa([=, &s] {
      const bool* see = static_cast<const bool*>(mask) + at;
      for (int64_t j = 0; j < count; ++j) scores[j] = see[j * step] ? scores[j] : s.hidden;
    });
    return;
  }
  ForDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* bias = static_cast<const T*>(mask) + at;
    if (s.nan_rows != NanRows::kByMask) {
      for (int64_t j = 0; j < count; ++j) scores[j] += Widen(bias[j * step]);
      return;
    }
    for (int64_t j = 0; j < count; ++j) {
      const float b = Widen(bias[j * step]);
      scores[j] = b == kMinusInfinity ? kMinusInfinity : scores[j] + b;
    }
  });
}

void HideSlopes(const AttentionSpec& s, const void* mask, int64_t at, int64_t count,
                float* slopes) {
  const bool* see = static_cast<const bool*>(mask) + at;
  const int64_t step = s.mask_strides[3];
  OnBestIsa([=] {
    for (int64_t j = 0; j < count; ++j) slopes[j] = see[j * step] ? slopes[j] : 0.0f;
  });
}

float Magnitude(DType dtype, const void* x, const HeadRows& rows) {
  int32_t bits = 0;  // of a float without its sign: ordered as the floats are, NaN last
  ForDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const HeadLayout& layout = *rows.layout;
    const T* first = static_cast<const T*>(x) + rows.head + rows.first * layout.row_stride;
    OnBestIsa([&bits, &layout, first, count = rows.last - rows.first] {
      const auto look = [&](auto step) {  // a constant 1 where the compiler shall make vectors
        for (int64_t i = 0; i < count; ++i) {
          const T* row = first + i * layout.row_stride;
          int32_t most = 0;
#pragma omp simd reduction(max : most)
          for (int64_t c = 0; c < layout.size; ++c) {
            most = std::max(most, std::bit_cast<int32_t>(Widen(row[c * step])) & 0x7fffffff);
          }
          bits = std::max(bits, most);
        }
      };
      if (layout.col_stride == 1) look(std::integral_constant<int64_t, 1>());
      else look(layout.col_stride);
    });
  });
  return std::bit_cast<float>(bits);
}

}  // namespace caesura::tiles
