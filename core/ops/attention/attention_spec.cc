// SPDX-License-Identifier: Apache-2.0
#include "core/ops/attention/attention_spec.h"

#include <cmath>
#include <string>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

Result<HeadLayout> MakeLayout(const KernelInfo& info, int input, int rank,
                              const char* heads_attribute) {
  const Shape& x = info.InputShape(input);
  if (x.rank() != rank)
    return info.Invalid("Q, K and V of one rank, 3 or 4, expected, got " + x.ToString());
  const int64_t heads = rank == 4 ? x[1] : info.Attr<int64_t>(heads_attribute, 0);
  if (rank == 3 && (heads <= 0 || x[2] % heads != 0)) {
    return info.Invalid(std::string(heads_attribute) + " must divide the last dim of " +
                        x.ToString());
  }
  return HeadsOf(x, info.input(input).layout, heads);
}

// Added to a score, it leaves no weight, whatever the score.
constexpr double kHidesScore = -1e30;

// True if a mask of so many keys hides exactly what causality hides: keys after the query.
bool IsCausal(const Tensor& mask, int64_t keys) {
  auto shows = [&](auto sees, auto hides) {
    for (int64_t e = 0; e < mask.elements(); ++e) {
      if (e % keys <= e / keys ? !sees(e) : !hides(e)) return false;
    }
    return true;
  };
  if (mask.dtype() == DType::kBool) {
    const bool* x = mask.data<bool>();
    return shows([x](int64_t e) { return x[e]; }, [x](int64_t e) { return !x[e]; });
  }
  bool causal = false;
  DispatchFloat(mask.dtype(), [&](auto tag) {
    const auto* x = mask.data<typename decltype(tag)::type>();
    causal =
        shows([x](int64_t e) { return x[e] == 0; }, [x](int64_t e) { return x[e] <= kHidesScore; });
  });
  return causal;
}

Status ReadMask(const KernelInfo& info, int input, bool keep, AttentionSpec& s) {
  if (!info.HasInput(input)) return {};
  const Shape& m = info.InputShape(input);
  if (info.InputDType(input) == DType::kBool) {
    s.mask = MaskKind::kBool;
  } else if (info.InputDType(input) == info.InputDType(input - 3)) {
    s.mask = MaskKind::kFloat;
  } else {
    return info.Refuse(std::string("attn_mask of bool or of Q's dtype expected, got ") +
                       DTypeName(info.InputDType(input)));
  }
  const int64_t wanted[] = {s.batch, s.q.heads, s.q.positions, s.total};
  if (m.rank() < 1 || m.rank() > 4)
    return info.Invalid("attn_mask of rank 1 to 4 expected, got " + m.ToString());
  int64_t stride = 1;
  for (int d = m.rank() - 1, to = 3; d >= 0; --d, --to) {
    const bool fits = m[d] == 1 || m[d] == wanted[to] || (to == 3 && m[d] <= wanted[to]);
    if (!fits) return info.Invalid("attn_mask does not broadcast to the scores: " + m.ToString());
    s.mask_strides[to] = m[d] == 1 ? 0 : stride;
    stride *= m[d];
  }
  // A mask of one key is padded like any other short one, unless there is but one key to broadcast
  // to.
  s.mask_length = m[m.rank() - 1];
  // Output 3 shows the masked scores, or is the mask's gradient.
  const bool plain =
      s.past == 0 && !s.has_lengths && s.left < 0 && s.right < 0 && !info.HasOutput(3);
  const bool square = m.rank() >= 2 && m[m.rank() - 2] == s.q.positions &&
                      m[m.rank() - 1] == s.total && m.elements() == s.q.positions * s.total;
  if (!keep && plain && square && info.InputValue(input) != nullptr &&
      IsCausal(*info.InputValue(input), s.total)) {
    s.causal = true;
    s.mask = MaskKind::kNone;
    std::fill_n(s.mask_strides, 4, 0);
  }
  return {};
}

Status ReadCache(const KernelInfo& info, int first, AttentionSpec& s) {
  s.has_past = info.HasInput(first + 4);
  if (s.has_past != info.HasInput(first + 5))
    return info.Invalid("past_key and past_value are used together");
  s.has_lengths = info.HasInput(first + 6);
  if (s.has_lengths && (s.has_past || info.InputShape(first + 6) != Shape{s.batch} ||
                        info.InputDType(first + 6) != DType::kInt64)) {
    return info.Invalid("nonpad_kv_seqlen: int64 of one element a sample and no past expected");
  }
  if (s.has_past) {
    const Shape &key = info.InputShape(first + 4), &value = info.InputShape(first + 5);
    s.past = key.rank() == 4 ? key[2] : 0;
    if (key != Shape{s.batch, s.k.heads, s.past, s.k.size} ||
        value != Shape{s.batch, s.v.heads, s.past, s.v.size}) {
      return info.Invalid("past_key and past_value do not fit: " + key.ToString() + ", " +
                          value.ToString());
    }
  }
  return {};
}

}  // namespace

Shape OutputShape(const Shape& q, const AttentionSpec& s) {
  Shape y = q;
  y[y.rank() - 1] = y.rank() == 4 ? s.v.size : s.q.heads * s.v.size;
  return y;
}

HeadLayout HeadsOf(const Shape& shape, const Layout& layout, int64_t heads) {
  const std::vector<int64_t> d = StridesOf(shape, layout);
  if (shape.rank() == 4) return {heads, shape[2], shape[3], d[0], d[1], d[2], d[3], layout.offset};
  const int64_t size = shape[2] / heads;
  return {heads, shape[1], size, d[0], size * d[2], d[1], d[2], layout.offset};
}

Result<DType> SoftmaxPrecision(const KernelInfo& info, DType q) {
  const int64_t number = info.Attr<int64_t>("softmax_precision", 0);
  if (number == 0) return DType::kUndefined;
  const auto dtype = static_cast<DType>(number);
  if (number < 0 || number >= kDTypeCount || !kFloatTypes.Contains(dtype)) {
    return info.Invalid("softmax_precision: expected 1, 10, 11 or 16, got " +
                        std::to_string(number));
  }
  const DType computed = q == DType::kFloat64 ? q : DType::kFloat32;
  return dtype == q || dtype == computed ? DType::kUndefined : dtype;
}

Result<AttentionSpec> MakeAttentionSpec(const KernelInfo& info, int first, bool cache,
                                        bool keep_mask) {
  AttentionSpec s;
  const int rank = info.InputShape(first).rank();
  if (rank != 3 && rank != 4) return info.Invalid("Q of rank 3 or 4 expected");
  ASSIGN_OR_RETURN(s.q, MakeLayout(info, first, rank, "q_num_heads"));
  ASSIGN_OR_RETURN(s.k, MakeLayout(info, first + 1, rank, "kv_num_heads"));
  ASSIGN_OR_RETURN(s.v, MakeLayout(info, first + 2, rank, "kv_num_heads"));
  s.batch = info.InputShape(first)[0];
  if (info.InputShape(first + 1)[0] != s.batch || info.InputShape(first + 2)[0] != s.batch ||
      s.k.heads != s.v.heads || s.k.positions != s.v.positions || s.k.size != s.q.size ||
      s.k.heads == 0 || s.q.heads % s.k.heads != 0) {
    return info.Invalid("Q, K and V do not fit: " + info.InputShape(first).ToString() + ", " +
                        info.InputShape(first + 1).ToString() + ", " +
                        info.InputShape(first + 2).ToString());
  }
  for (int i : {1, 2}) {
    if (info.InputDType(first + i) != info.InputDType(first))
      return info.Refuse("Q, K and V of different dtypes");
  }
  s.y = rank == 4 ? HeadLayout::Rank4(s.q.heads, s.q.positions, s.v.size)
                  : HeadLayout::Rank3(s.q.heads, s.q.positions, s.v.size);
  const double natural = s.q.size == 0 ? 1 : 1 / std::sqrt(static_cast<double>(s.q.size));
  s.scale = info.node().HasAttribute("scale") ? info.Attr<float>("scale", 1.0f) : natural;
  s.softcap = info.Attr<float>("softcap", 0.0f);
  s.causal = info.Attr<int64_t>("is_causal", 0) != 0;
  s.left = info.Attr<int64_t>("left_window_size", -1);
  s.right = info.Attr<int64_t>("right_window_size", -1);
  if (s.left < -1 || s.right < -1) return info.Invalid("window sizes of -1 or more expected");
  s.nan_rows = static_cast<NanRows>(info.Attr<int64_t>(kNanRows, 0));
  s.hidden = info.Attr<float>(kHiddenScore, s.hidden);
  ASSIGN_OR_RETURN(s.softmax, SoftmaxPrecision(info, info.InputDType(first)));
  if (cache) RETURN_IF_ERROR(ReadCache(info, first, s));
  s.total = s.past + s.k.positions;
  if (s.total == 0) s.nan_rows = NanRows::kByMask;  // sums of nothing are zero
  RETURN_IF_ERROR(ReadMask(info, first + 3, keep_mask, s));
  return s;
}

std::vector<int64_t> QueryHeadStrides(const AttentionSpec& s, const HeadLayout& layout) {
  return {layout.batch_stride, s.group() * layout.head_stride, layout.head_stride};
}

std::vector<int64_t> KeyHeadStrides(const HeadLayout& layout) {
  return {layout.batch_stride, layout.head_stride, 0};
}

}  // namespace caesura
