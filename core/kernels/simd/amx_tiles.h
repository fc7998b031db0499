// SPDX-License-Identifier: Apache-2.0
// bfloat16 products in float32 sums by Intel's Advanced Matrix Extensions: what attention is made
// of where the machine has them.
//
// A matrix is kept as tiles of 1 KiB, zeros around it. On the left of a product a tile holds 16
// rows, 32 deep; on the right 16 columns, 32 deep, as 16 rows of pairs that are neighbours in
// depth.
#ifndef CAESURA_CORE_KERNELS_SIMD_AMX_TILES_H_
#define CAESURA_CORE_KERNELS_SIMD_AMX_TILES_H_

#include <cstdint>

namespace caesura::amx {

inline constexpr int64_t kLines = 16;  // rows or columns of a tile
inline constexpr int64_t kDepth = 32;
inline constexpr int64_t kTileBytes = 1024;

// True if the machine has AMX, the operating system grants them, and CAESURA_MAX_ISA allows them;
// decided once.
bool Available();

// Sets the thread's tile registers up, for as long as it lives. All below needs one around it.
class Registers {
 public:
  Registers();
  ~Registers();
  Registers(const Registers&) = delete;
  Registers& operator=(const Registers&) = delete;
};

// Tiles of the same lines lie along depth, `step` of them before the next lines'. 64-byte aligned.
struct Tiles {
  char* at;
  int64_t step;
  Tiles From(int64_t line, int64_t deep) const {
    return {at + (line * step + deep) * kTileBytes, step};
  }
};

// Rows of bfloat16 numbers, `step` elements apart, whose neighbours are `column_step` apart.
struct Halves {
  const uint16_t* at;
  int64_t step, column_step, rows, width;
};
// X on the left.
void PackLeft(const Halves& x, int64_t lines, int64_t deep, const Tiles& to);
// X on the right, its rows in depth.
void PackRight(const Halves& x, int64_t lines, int64_t deep, const Tiles& to);
// X turned, on the right: its rows are columns.
void PackRightTurned(const Halves& x, int64_t lines, int64_t deep, const Tiles& to);

// Whole tiles of floats, rounded: X on the left, and X turned on the left. Rows are aligned to 64
// bytes.
void NarrowLeft(const float* x, int64_t step, int64_t lines, int64_t deep, const Tiles& to);
void NarrowLeftTurned(const float* x, int64_t step, int64_t lines, int64_t deep, const Tiles& to);

// C = A B, or C += A B where `add`, `deep` tiles in depth: rows * 16 rows and columns * 16 columns,
// `step` floats apart.
void Multiply(const Tiles& a, const Tiles& b, int64_t deep, float* c, int64_t step, int64_t rows,
              int64_t columns, bool add);

}  // namespace caesura::amx

#endif  // CAESURA_CORE_KERNELS_SIMD_AMX_TILES_H_
