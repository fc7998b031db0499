// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/simd/amx_tiles.h"

#ifdef __x86_64__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored \
    "-Wmaybe-uninitialized"  // in GCC 12's own intrinsics (its bug 105593)
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <utility>

#include <oneapi/dnnl/dnnl.hpp>

#include "core/kernels/gemm/dnnl_handles.h"

// For what prepares tiles. Tile instructions themselves stand as assembly: the compiler's own do
// not say that they read and write memory.
#define CAESURA_AMX [[gnu::target("arch=x86-64-v4,avx512bf16")]]

namespace caesura::amx {
namespace {

template <int kTile>
inline void Load(const void* from, int64_t step) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(step), "i"(kTile) : "memory");
}
template <int kTile>
inline void Store(void* to, int64_t step) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(step), "i"(kTile) : "memory");
}
template <int kTile>
inline void Clear() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kSum, int kLeft, int kRight>
inline void AddProduct() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
}

// A row of tiles of C: the sums in registers 0 to 3, A in 6, B in 4 and 5 by turns.
template <int kColumns>
void MultiplyRow(const char* a, const Tiles& b, int64_t deep, float* c, int64_t step_bytes,
                 bool add) {
  [&]<int... n>(std::integer_sequence<int, n...>) {
    if (add) (Load<n>(c + n * kLines, step_bytes), ...);
    else (Clear<n>(), ...);
    for (int64_t p = 0; p < deep; ++p) {
      Load<6>(a + p * kTileBytes, 64);
      ((Load<4 + n % 2>(b.From(n, p).at, 64), AddProduct<n, 6, 4 + n % 2>()), ...);
    }
    (Store<n>(c + n * kLines, step_bytes), ...);
  }(std::make_integer_sequence<int, kColumns>());
}

// A tile.
struct Lines {
  __m512i at[16];
  __m512i& operator[](int i) { return at[i]; }
};

// As a 16 x 16 matrix of 32-bit numbers, turned.
CAESURA_AMX inline void Turn(Lines& x) {
  Lines y;
  for (int i = 0; i < 8; ++i) {
    y[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
    y[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    for (int half = 0; half < 2; ++half) {
      x[4 * i + 2 * half] = _mm512_unpacklo_epi64(y[4 * i + half], y[4 * i + 2 + half]);
      x[4 * i + 2 * half + 1] = _mm512_unpackhi_epi64(y[4 * i + half], y[4 * i + 2 + half]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int half = 0; half < 2; ++half) {
      y[8 * half + i] = _mm512_shuffle_i32x4(x[8 * half + i], x[8 * half + 4 + i], 0x88);
      y[8 * half + 4 + i] = _mm512_shuffle_i32x4(x[8 * half + i], x[8 * half + 4 + i], 0xdd);
    }
  }
  for (int i = 0; i < 8; ++i) {
    x[i] = _mm512_shuffle_i32x4(y[i], y[8 + i], 0x88);
    x[8 + i] = _mm512_shuffle_i32x4(y[i], y[8 + i], 0xdd);
  }
}

CAESURA_AMX inline void Put(const Lines& lines, char* tile) {
  for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + 64 * i, lines.at[i]);
}

// Up to `most` elements from `column` on of 16 rows, `row_step` apart, and zeros around the matrix.
CAESURA_AMX inline void Take(const Halves& x, int64_t row, int64_t row_step, int64_t column,
                             int64_t most, Lines& to) {
  const int64_t count = std::clamp<int64_t>(x.width - column, 0, most);
  const __mmask32 mask = static_cast<__mmask32>((uint64_t{1} << count) - 1);
  for (int r = 0; r < 16; ++r, row += row_step) {
    const uint16_t* from = x.at + row * x.step + column * x.column_step;
    if (row >= x.rows || count == 0) {
      to[r] = _mm512_setzero_si512();
    } else if (x.column_step == 1) {
      to[r] = _mm512_maskz_loadu_epi16(mask, from);
    } else {
      alignas(64) uint16_t line[kDepth] = {};
      for (int64_t i = 0; i < count; ++i) line[i] = from[i * x.column_step];
      to[r] = _mm512_load_si512(line);
    }
  }
}

// The order of 16 numbers of one row and of another, by turns, from the given one on; the other
// row's begin at 32.
CAESURA_AMX inline __m512i Turns(int first) {
  const __m512i pairs = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_add_epi32(_mm512_mullo_epi32(pairs, _mm512_set1_epi32(0x10001)),
                          _mm512_set1_epi32(first | (first + 32) << 16));
}

CAESURA_AMX inline __m512i Narrow(const float* low, const float* high) {
  const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_load_ps(high), _mm512_load_ps(low));
  return reinterpret_cast<const __m512i&>(both);
}

}  // namespace

bool Available() {
  static const bool available = [] {
    DnnlCpuEngine();  // which caps what follows
    const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
    return isa == dnnl::cpu_isa::avx512_core_amx || isa == dnnl::cpu_isa::avx512_core_amx_fp16;
  }();
  return available;
}

// All eight registers: 16 rows of 64 bytes.
Registers::Registers() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } const shapes;
  asm volatile("ldtilecfg %0" ::"m"(shapes));
}
Registers::~Registers() { asm volatile("tilerelease"); }

CAESURA_AMX void PackLeft(const Halves& x, int64_t lines, int64_t deep, const Tiles& to) {
  for (int64_t i = 0; i < lines; ++i) {
    for (int64_t p = 0; p < deep; ++p) {
      Lines rows;
      Take(x, i * kLines, 1, p * kDepth, kDepth, rows);
      Put(rows, to.From(i, p).at);
    }
  }
}

CAESURA_AMX void PackRight(const Halves& x, int64_t lines, int64_t deep, const Tiles& to) {
  for (int64_t p = 0; p < deep; ++p) {
    for (int64_t j = 0; j < lines; j += 2) {  // a row of 32 columns goes to two tiles
      Lines even, odd, low, high;
      Take(x, p * kDepth, 2, j * kLines, 2 * kLines, even);
      Take(x, p * kDepth + 1, 2, j * kLines, 2 * kLines, odd);
      for (int r = 0; r < 16; ++r) {
        low[r] = _mm512_permutex2var_epi16(even[r], Turns(0), odd[r]);
        high[r] = _mm512_permutex2var_epi16(even[r], Turns(16), odd[r]);
      }
      Put(low, to.From(j, p).at);
      if (j + 1 < lines) Put(high, to.From(j + 1, p).at);
    }
  }
}

CAESURA_AMX void PackRightTurned(const Halves& x, int64_t lines, int64_t deep, const Tiles& to) {
  for (int64_t j = 0; j < lines; ++j) {
    for (int64_t p = 0; p < deep; ++p) {
      Lines rows;
      Take(x, j * kLines, 1, p * kDepth, kDepth, rows);
      Turn(rows);
      Put(rows, to.From(j, p).at);
    }
  }
}

CAESURA_AMX void NarrowLeft(const float* x, int64_t step, int64_t lines, int64_t deep,
                            const Tiles& to) {
  for (int64_t i = 0; i < lines; ++i) {
    for (int64_t p = 0; p < deep; ++p) {
      const float* from = x + i * kLines * step + p * kDepth;
      char* tile = to.From(i, p).at;
      for (int r = 0; r < 16; ++r)
        _mm512_store_si512(tile + 64 * r, Narrow(from + r * step, from + r * step + 16));
    }
  }
}

CAESURA_AMX void NarrowLeftTurned(const float* x, int64_t step, int64_t lines, int64_t deep,
                                  const Tiles& to) {
  for (int64_t i = 0; i < lines; ++i) {
    for (int64_t p = 0; p < deep; ++p) {
      const float* from = x + p * kDepth * step + i * kLines;
      const __m512i behind =
          _mm512_sub_epi16(Turns(0), _mm512_set1_epi32(16 << 16));  // the other row's begin at 16
      Lines pairs;
      for (int r = 0; r < 16; ++r) {
        const float* even = from + 2 * r * step;
        pairs[r] = _mm512_permutexvar_epi16(behind, Narrow(even, even + step));
      }
      Turn(pairs);
      Put(pairs, to.From(i, p).at);
    }
  }
}

void Multiply(const Tiles& a, const Tiles& b, int64_t deep, float* c, int64_t step, int64_t rows,
              int64_t columns, bool add) {
  constexpr int kAtOnce = 4;
  const int64_t bytes = step * static_cast<int64_t>(sizeof(float));
  for (int64_t j = 0; j < columns; j += kAtOnce) {
    for (int64_t i = 0; i < rows; ++i) {
      const char* left = a.From(i, 0).at;
      const Tiles right = b.From(j, 0);
      float* to = c + i * kLines * step + j * kLines;
      switch (std::min<int64_t>(columns - j, kAtOnce)) {
        case 1: MultiplyRow<1>(left, right, deep, to, bytes, add); break;
        case 2: MultiplyRow<2>(left, right, deep, to, bytes, add); break;
        case 3: MultiplyRow<3>(left, right, deep, to, bytes, add); break;
        default: MultiplyRow<4>(left, right, deep, to, bytes, add);
      }
    }
  }
}

}  // namespace caesura::amx

#else

namespace caesura::amx {

bool Available() { return false; }
Registers::Registers() = default;
Registers::~Registers() = default;
void PackLeft(const Halves&, int64_t, int64_t, const Tiles&) {}
void PackRight(const Halves&, int64_t, int64_t, const Tiles&) {}
void PackRightTurned(const Halves&, int64_t, int64_t, const Tiles&) {}
void NarrowLeft(const float*, int64_t, int64_t, int64_t, const Tiles&) {}
void NarrowLeftTurned(const float*, int64_t, int64_t, int64_t, const Tiles&) {}
void Multiply(const Tiles&, const Tiles&, int64_t, float*, int64_t, int64_t, int64_t, bool) {}

}  // namespace caesura::amx

#endif
