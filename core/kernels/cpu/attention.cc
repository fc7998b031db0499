// SPDX-License-Identifier: Apache-2.0
// Attention: Y = softmax(cap(scale * Q K^T) + bias) V for grouped heads, with a key and value cache.
#include "core/base/status_macros.h"
#include "core/kernels/cpu/attention_scores.h"
#include "core/kernels/cpu/kernel_list.h"
#include "core/kernels/cpu/through_float.h"

namespace caesura {
namespace {

struct AttentionKernel {
  AttentionSpec spec;
  HeadLayout keys, values;  // of what the products read: inputs as they stand, or the joined cache
  bool join, has_keys, has_values, has_scores;
  int64_t score_mode;
  size_t joined_keys, joined_values, scores, blind;
  Gemm qk, pv;
  ScoreSoftmax softmax;
  int threads;
};

// Past and new positions side by side, in the present output or, where that is absent, in scratch memory.
template <typename T>
const T* Join(const AttentionKernel& k, KernelContext& context, int input, int past, const HeadLayout& layout,
              const HeadLayout& joined, T* to) {
  if (k.spec.has_past) {
    CopyHeads(k.spec.batch, HeadLayout::Rank4(joined.heads, k.spec.past, joined.size), context.Input<T>(past), joined,
              0, to);
  }
  CopyHeads(k.spec.batch, layout, context.Input<T>(input), joined, k.spec.past, to);
  return to;
}

template <typename T>
Status RunAttention(const AttentionKernel& k, KernelContext& context) {
  const AttentionSpec& s = k.spec;
  const T *keys = context.Input<T>(1), *values = context.Input<T>(2);
  if (k.join) {
    T* key_to = k.has_keys ? context.Output<T>(1) : context.Scratch<T>(k.joined_keys);
    T* value_to = k.has_values ? context.Output<T>(2) : context.Scratch<T>(k.joined_values);
    keys = Join(k, context, 1, 4, s.k, k.keys, key_to);
    values = Join(k, context, 2, 5, s.v, k.values, value_to);
  }
  T* scores = context.Scratch<T>(k.scores);
  auto emit = [&](int64_t mode) {
    if (k.has_scores && k.score_mode == mode) std::copy_n(scores, s.score_count(), context.Output<T>(3));
  };
  RETURN_IF_ERROR(k.qk.Run(context, context.Input<T>(0), keys, scores));
  emit(0);
  CapScores(s, k.threads, scores);
  emit(1);
  uint8_t* blind = context.Scratch<uint8_t>(k.blind);
  const void* mask = s.mask == MaskKind::kNone ? nullptr : context.Input<void>(3);
  BiasScores(s, k.threads, mask, s.has_lengths ? context.Input<int64_t>(6) : nullptr, scores, blind);
  emit(2);
  RETURN_IF_ERROR(k.softmax.Run(s, context, blind, scores));
  emit(3);
  return k.pv.Run(context, scores, values, context.Output<T>(0));
}

Status MakeProducts(KernelInfo& info, DType dtype, AttentionKernel& k) {
  const AttentionSpec& s = k.spec;
  const HeadLayout score = HeadLayout::Rank4(s.q.heads, s.q.positions, s.total);
  ASSIGN_OR_RETURN(k.qk, Gemm::Create(info, {.dtype = dtype, .m = s.q.positions, .n = s.total, .k = s.q.size,
                                             .a = RowMajor(s.q.row_stride), .b = ColumnMajor(k.keys.row_stride),
                                             .c = RowMajor(s.total), .batch = HeadBatch(s),
                                             .a_batch = QueryHeadStrides(s, s.q), .b_batch = KeyHeadStrides(k.keys),
                                             .c_batch = QueryHeadStrides(s, score),
                                             .alpha = static_cast<float>(s.scale)}));
  ASSIGN_OR_RETURN(k.pv, Gemm::Create(info, {.dtype = dtype, .m = s.q.positions, .n = s.v.size, .k = s.total,
                                             .a = RowMajor(s.total), .b = RowMajor(k.values.row_stride),
                                             .c = RowMajor(s.y.row_stride), .batch = HeadBatch(s),
                                             .a_batch = QueryHeadStrides(s, score),
                                             .b_batch = KeyHeadStrides(k.values),
                                             .c_batch = QueryHeadStrides(s, s.y)}));
  ASSIGN_OR_RETURN(k.softmax, ScoreSoftmax::Make(info, dtype, s));
  return {};
}

Status CreateAttention(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  AttentionKernel k{};
  ASSIGN_OR_RETURN(k.spec, MakeAttentionSpec(info, 0));
  const AttentionSpec& s = k.spec;
  k.threads = info.threads();
  k.has_keys = info.HasOutput(1);
  k.has_values = info.HasOutput(2);
  k.has_scores = info.HasOutput(3);
  k.score_mode = info.Attr<int64_t>("qk_matmul_output_mode", 0);
  if (k.score_mode < 0 || k.score_mode > 3) return info.Invalid("qk_matmul_output_mode of 0 to 3 expected");
  k.join = s.has_past || k.has_keys || k.has_values;
  k.keys = k.join ? HeadLayout::Rank4(s.k.heads, s.total, s.k.size) : s.k;
  k.values = k.join ? HeadLayout::Rank4(s.v.heads, s.total, s.v.size) : s.v;
  if (k.join) {
    k.joined_keys = info.BookScratch(k.has_keys ? 0 : s.batch * k.keys.batch_stride * DTypeSize(dtype));
    k.joined_values = info.BookScratch(k.has_values ? 0 : s.batch * k.values.batch_stride * DTypeSize(dtype));
  }
  k.scores = info.BookScratch(s.score_count() * DTypeSize(dtype));
  k.blind = info.BookScratch(s.batch * s.q.heads * s.q.positions);
  RETURN_IF_ERROR(MakeProducts(info, dtype, k));
  Shape y = info.InputShape(0);
  y[y.rank() - 1] = y.rank() == 4 ? s.v.size : s.q.heads * s.v.size;
  info.SetOutput(0, dtype, y);
  info.SetOutput(1, dtype, Shape{s.batch, s.k.heads, s.total, s.k.size});
  info.SetOutput(2, dtype, Shape{s.batch, s.v.heads, s.total, s.v.size});
  info.SetOutput(3, dtype, s.ScoreShape());
  DispatchDType<float, double>(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([k = std::move(k)](KernelContext& context) { return RunAttention<T>(k, context); });
  });
  return {};
}

}  // namespace

void RegisterAttentionKernels(KernelRegistry& registry) {
  registry.Add({.op_type = "Attention", .types = {DType::kFloat32, DType::kFloat64}, .create = CreateAttention});
  registry.Add({.op_type = "Attention", .types = {DType::kFloat16, DType::kBFloat16},
                .create = ThroughFloat<CreateAttention>});
  RegisterRotaryKernels(registry);
  RegisterLinearAttentionKernels(registry);
}

}  // namespace caesura
