// SPDX-License-Identifier: Apache-2.0
// ONNX's Attention as numbers: sizes, layouts, and which keys a query may see. Shared with its
// gradient.
#ifndef CAESURA_CORE_OPS_ATTENTION_ATTENTION_SPEC_H_
#define CAESURA_CORE_OPS_ATTENTION_ATTENTION_SPEC_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/base/status.h"
#include "core/kernels/kernel.h"
#include "core/kernels/gemm/gemm_spec.h"

namespace caesura {

// A tensor [batch, heads, positions, size] in memory: rank 4 as it stands, rank 3 with heads inside
// the last dim.
struct HeadLayout {
  int64_t heads = 0, positions = 0, size = 0;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0, col_stride = 1, offset = 0;

  // Where a head begins.
  int64_t Head(int64_t b, int64_t head) const {
    return offset + b * batch_stride + head * head_stride;
  }

  static HeadLayout Rank4(int64_t heads, int64_t positions, int64_t size) {
    return {heads, positions, size, heads * positions * size, positions * size, size};
  }
  static HeadLayout Rank3(int64_t heads, int64_t positions, int64_t size) {
    return {heads, positions, size, positions * heads * size, size, heads * size};
  }
};

enum class MaskKind { kNone, kBool, kFloat };

// The result of a query whose probabilities are NaN, because it may look nowhere or a score of it
// is NaN or +inf. kByMask: ONNX's rule, zeros where the mask hides all keys. kKept, kZero: as
// MatMul, Add, Softmax and MatMul have it that one node stands for, without and with zeros put in
// the place of NaN; what the inputs hold that is not finite then reaches the outputs as it would
// through those nodes, also from keys that are hidden.
enum class NanRows { kByMask, kKept, kZero };
// Attributes of Attention and its gradient, beside ONNX's: NanRows as an integer, and the score of
// a key that a bool mask hides (-inf where it is left out).
inline constexpr char kNanRows[] = "nan_rows", kHiddenScore[] = "hidden_score";

// Positions [first, last).
struct KeyRange {
  int64_t first, last;
};

struct AttentionSpec {
  int64_t batch = 0, past = 0, total = 0;  // total: keys, past ones included
  HeadLayout q, k, v, y;                   // k and v: of the inputs, without the past
  double scale = 1, softcap = 0;
  bool causal = false;
  int64_t left = -1, right = -1;  // windows; -1: open
  MaskKind mask = MaskKind::kNone;
  int64_t mask_length = 0,
          mask_strides[4] = {};  // of batch, head, query and key; 0 where it broadcasts
  bool has_past = false, has_lengths = false;
  NanRows nan_rows = NanRows::kByMask;
  float hidden =
      -std::numeric_limits<float>::infinity();  // the score of a key that a bool mask hides
  DType softmax = DType::kUndefined;            // as SoftmaxPrecision has it

  int64_t group() const { return q.heads / k.heads; }  // query heads a key head
  int64_t queries() const { return q.positions; }
  int64_t score_count() const { return batch * q.heads * q.positions * total; }
  Shape ScoreShape() const { return {batch, q.heads, q.positions, total}; }

  // The keys that causality, windows, `lengths` (null: none) and a short mask leave to query `i`.
  // Both ends grow with `i`.
  KeyRange Sees(int64_t b, int64_t i, const int64_t* lengths) const {
    const int64_t length = lengths == nullptr ? total : lengths[b];
    const int64_t place = i + (lengths == nullptr ? past : length - queries());
    int64_t last = std::min(total, length);
    if (causal) last = std::min(last, place + 1);
    if (right >= 0) last = std::min(last, place + right + 1);
    if (mask != MaskKind::kNone) last = std::min(last, mask_length);
    last = std::max<int64_t>(0, last);
    return {std::clamp<int64_t>(left >= 0 ? place - left : 0, 0, last), last};
  }
  // The first element of the mask's row.
  int64_t MaskRow(int64_t b, int64_t head, int64_t i) const {
    return b * mask_strides[0] + head * mask_strides[1] + i * mask_strides[2];
  }
  // Adds mask, causality, windows and lengths to the scores of query `i`; -inf where it may not
  // look. False when it may look nowhere. `mask` and `lengths` may be null.
  template <typename T>
  bool AddBias(int64_t b, int64_t head, int64_t i, const void* mask, const int64_t* lengths,
               T* scores) const;
};

// Inputs Q, K, V, attn_mask? from input `first` on, of which Q, K, V may have any layout; after
// them past_key?, past_value?, nonpad_kv_seqlen? where `cache`. Y is dense. A constant mask that
// hides what causality hides becomes that, unless `keep_mask`.
Result<AttentionSpec> MakeAttentionSpec(const KernelInfo& info, int first, bool cache,
                                        bool keep_mask = false);

// The attribute softmax_precision, where kernels that compute scores in float (float64 ones in
// double) must heed it: scores are rounded to that type, and so are their probabilities. kUndefined
// where it is left out, is the type of Q, or is what kernels compute in.
Result<DType> SoftmaxPrecision(const KernelInfo& info, DType q);

// Y's shape.
Shape OutputShape(const Shape& q, const AttentionSpec& s);

// The layout of a tensor of heads: of rank 4, or of rank 3 with heads inside the last dim.
HeadLayout HeadsOf(const Shape& shape, const Layout& layout, int64_t heads);

// The batch dims [batch, key heads, group] with the strides of a tensor of query heads, or of key
// heads.
std::vector<int64_t> QueryHeadStrides(const AttentionSpec& s, const HeadLayout& layout);
std::vector<int64_t> KeyHeadStrides(const HeadLayout& layout);
inline std::vector<int64_t> HeadBatch(const AttentionSpec& s) {
  return {s.batch, s.k.heads, s.group()};
}

template <typename T>
bool AttentionSpec::AddBias(int64_t b, int64_t head, int64_t i, const void* mask_data,
                            const int64_t* lengths, T* scores) const {
  const T minus_infinity = -std::numeric_limits<T>::infinity();
  const auto [first, last] = Sees(b, i, lengths);
  std::fill(scores, scores + first, minus_infinity);
  std::fill(scores + last, scores + total, minus_infinity);
  const bool by_mask = nan_rows == NanRows::kByMask;
  if (mask == MaskKind::kNone) return first < last || !by_mask;
  const int64_t at = MaskRow(b, head, i), step = mask_strides[3];
  bool any = false;
  for (int64_t j = first; j < last; ++j) {
    if (mask == MaskKind::kBool) {
      const bool see = static_cast<const bool*>(mask_data)[at + j * step];
      if (!see) scores[j] = static_cast<T>(hidden);
      any = any || see;
    } else {
      const T bias = static_cast<const T*>(mask_data)[at + j * step];
      scores[j] = by_mask && bias == minus_infinity ? minus_infinity : scores[j] + bias;
      any = any || bias != minus_infinity;
    }
  }
  return any || !by_mask;
}

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_ATTENTION_ATTENTION_SPEC_H_
