// SPDX-License-Identifier: Apache-2.0
// Products of float32 blocks that stay in registers, and what they are fed with: the core of tiled
// attention and of small matrix products. All of it inlines into a loop under OnBestTiles.
#ifndef CAESURA_CORE_KERNELS_SIMD_FLOAT_TILES_H_
#define CAESURA_CORE_KERNELS_SIMD_FLOAT_TILES_H_

#include <cstdint>

#include "core/kernels/simd/best_isa.h"

namespace caesura::tiles {

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
  // Floats anywhere in memory. It is a struct because clang drops `aligned` from a vector type that
  // is a template argument, and then expects aligned memory.
  struct __attribute__((packed, may_alias)) Loose {
    Floats floats;
  };
  static constexpr int64_t kWidth = sizeof(Floats) / sizeof(float);
  static constexpr int kVectors = 2;

  static Floats& At(float* p) { return *reinterpret_cast<Floats*>(p); }
  static const Floats& At(const float* p) { return *reinterpret_cast<const Floats*>(p); }
  static const Loose& AtLoose(const float* p) { return *reinterpret_cast<const Loose*>(p); }
  static void Store(float* p, const Floats& x) { reinterpret_cast<Loose*>(p)->floats = x; }
};

// fn(registers) on the machine's widest instruction set; `fn` is compiled once for each, with its
// own registers.
template <typename Fn>
void OnBestTiles(Fn fn) {
  auto wide = [&] { fn(Registers<Vectors64>()); };
  auto middle = [&] { fn(Registers<Vectors32>()); };
  OnBestIsa(wide, middle, [&] { fn(Registers<Vectors16>()); });
}

// A B for a block that stays in registers: store(row, vector, sum). A(r, k) is a[r * a_step + k],
// or a[k * a_step + r] where kAcross.
template <typename R, int kRows, int kVectors, bool kAcross, typename Store>
inline void MultiplyBlock(const float* a, int64_t a_step, const float* b, int64_t b_step,
                          int64_t depth, const Store& store) {
  typename R::Floats sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = typename R::Floats{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    typename R::Floats right[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) right[v] = R::AtLoose(b + k * b_step + v * R::kWidth).floats;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const float left = kAcross ? a[k * a_step + r] : a[r * a_step + k];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) store(r, v, sum[r][v]);
  }
}

// to[j][i] = from[i][j] for 4 x 4 floats.
inline void TransposeFour(const float* from, int64_t from_step, float* to, int64_t to_step) {
  using Four = Registers<Vectors16>;
  const Four::Floats r0 = Four::AtLoose(from).floats, r1 = Four::AtLoose(from + from_step).floats;
  const Four::Floats r2 = Four::AtLoose(from + 2 * from_step).floats,
                     r3 = Four::AtLoose(from + 3 * from_step).floats;
  const auto low0 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5),
             low1 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
  const auto high0 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7),
             high1 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  Four::Store(to, __builtin_shufflevector(low0, low1, 0, 1, 4, 5));
  Four::Store(to + to_step, __builtin_shufflevector(low0, low1, 2, 3, 6, 7));
  Four::Store(to + 2 * to_step, __builtin_shufflevector(high0, high1, 0, 1, 4, 5));
  Four::Store(to + 3 * to_step, __builtin_shufflevector(high0, high1, 2, 3, 6, 7));
}

}  // namespace caesura::tiles

#endif  // CAESURA_CORE_KERNELS_SIMD_FLOAT_TILES_H_
