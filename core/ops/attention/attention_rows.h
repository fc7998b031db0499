// SPDX-License-Identifier: Apache-2.0
// Moves between tensors of heads, of any float dtype and layout, and the float tiles of attention.
#ifndef CAESURA_CORE_OPS_ATTENTION_ATTENTION_ROWS_H_
#define CAESURA_CORE_OPS_ATTENTION_ATTENTION_ROWS_H_

#include "core/ops/attention/attention_spec.h"

namespace caesura::tiles {

// Rows of floats one after the other, each `width` long: what is beyond the matrix is zero.
struct Tile {
  float* at;
  int64_t rows, width;
};

// Positions [first, last) of the head whose first element is `head`.
struct HeadRows {
  const HeadLayout* layout;
  int64_t head, first, last;
};

// tile = scale * x, and zeros around it. `dtype`: float32, float16 or bfloat16.
void LoadRows(DType dtype, const void* x, const HeadRows& rows, float scale, const Tile& tile);
// y = scale * tile.
void StoreRows(DType dtype, const Tile& tile, float scale, const HeadRows& rows, void* y);

// The largest absolute value; NaN where one is NaN.
float Magnitude(DType dtype, const void* x, const HeadRows& rows);

// Adds the mask's bias to `count` neighbouring scores of a query, or puts there what hidden keys
// have. `at`: the mask's element of the first one. Float masks are of `dtype`.
void AddMask(DType dtype, const AttentionSpec& s, const void* mask, int64_t at, int64_t count,
             float* scores);
// Puts zeros for the keys that a bool mask hides: no gradient passes what was put in the place of
// their scores.
void HideSlopes(const AttentionSpec& s, const void* mask, int64_t at, int64_t count, float* slopes);

}  // namespace caesura::tiles

#endif  // CAESURA_CORE_OPS_ATTENTION_ATTENTION_ROWS_H_
