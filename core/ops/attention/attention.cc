// SPDX-License-Identifier: Apache-2.0
// Attention: Y = softmax(cap(scale * Q K^T) + bias) V for grouped heads, with a key and value
// cache. Without a cap and a precision of its own for the softmax it runs by tiles
// (attention_tiled.h); the plain way, for all else and for float64, writes the scores.
// AttentionTraining (ai.caesura) has a fifth output, the logarithm of each query's sum of e^score,
// for the gradient.
#include "core/base/status_macros.h"
#include "core/kernels/adapters/through_dense.h"
#include "core/kernels/adapters/through_float.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/attention/attention_scores.h"
#include "core/ops/attention/attention_tiled.h"
#include "core/kernels/gemm/gemm.h"

namespace caesura {
namespace {

// The common start of both ways: keys and values as the products read them.
struct JoinedCache {
  AttentionSpec spec;
  HeadLayout keys, values;  // inputs as they stand, or the joined cache
  bool join, has_keys, has_values;
  size_t joined_keys, joined_values;
};

struct AttentionKernel {
  JoinedCache cache;
  AttentionSpec spec;
  bool has_scores, has_lse;
  int64_t score_mode;
  size_t scores, rows_are;
  Gemm qk, pv;
  ScoreSoftmax softmax;
  int threads;
};

// Past and new positions side by side, in the present output or, where that is absent, in scratch
// memory.
template <typename T>
const T* Join(const JoinedCache& k, KernelContext& context, int input, int past,
              const HeadLayout& layout, const HeadLayout& joined, T* to) {
  if (k.spec.has_past) {
    CopyHeads(k.spec.batch, HeadLayout::Rank4(joined.heads, k.spec.past, joined.size),
              context.Input<T>(past), joined, 0, to);
  }
  CopyHeads(k.spec.batch, layout, context.Input<T>(input), joined, k.spec.past, to);
  return to;
}

template <typename T>
std::pair<const T*, const T*> KeysAndValues(const JoinedCache& k, KernelContext& context) {
  if (!k.join) return {context.Input<T>(1), context.Input<T>(2)};
  T* key_to = k.has_keys ? context.Output<T>(1) : context.Scratch<T>(k.joined_keys);
  T* value_to = k.has_values ? context.Output<T>(2) : context.Scratch<T>(k.joined_values);
  return {Join(k, context, 1, 4, k.spec.k, k.keys, key_to),
          Join(k, context, 2, 5, k.spec.v, k.values, value_to)};
}

const void* Mask(const AttentionSpec& s, KernelContext& context) {
  return s.mask == MaskKind::kNone ? nullptr : context.Input<void>(3);
}

const int64_t* Lengths(const AttentionSpec& s, KernelContext& context) {
  return s.has_lengths ? context.Input<int64_t>(6) : nullptr;
}

template <typename T>
Status RunAttention(const AttentionKernel& k, KernelContext& context) {
  const AttentionSpec& s = k.spec;
  const auto [keys, values] = KeysAndValues<T>(k.cache, context);
  T* scores = context.Scratch<T>(k.scores);
  auto emit = [&](int64_t mode) {
    if (k.has_scores && k.score_mode == mode)
      std::copy_n(scores, s.score_count(), context.Output<T>(3));
  };
  RETURN_IF_ERROR(k.qk.Run(context, context.Input<T>(0), keys, scores));
  emit(0);
  CapScores(s, k.threads, scores);
  emit(1);
  uint8_t* rows_are = context.Scratch<uint8_t>(k.rows_are);
  BiasScores(s, k.threads, Mask(s, context), Lengths(s, context), scores, rows_are);
  emit(2);
  if (k.has_lse) LogSumExp(s, rows_are, scores, context.Output<T>(4));
  RETURN_IF_ERROR(k.softmax.Run(s, context, rows_are, scores));
  emit(3);
  return k.pv.Run(context, scores, values, context.Output<T>(0));
}

Status MakeProducts(KernelInfo& info, DType dtype, AttentionKernel& k) {
  const AttentionSpec& s = k.spec;
  const HeadLayout score = HeadLayout::Rank4(s.q.heads, s.q.positions, s.total);
  ASSIGN_OR_RETURN(k.qk, Gemm::Create(info, {.dtype = dtype,
                                             .m = s.q.positions,
                                             .n = s.total,
                                             .k = s.q.size,
                                             .a = RowMajor(s.q.row_stride),
                                             .b = ColumnMajor(k.cache.keys.row_stride),
                                             .c = RowMajor(s.total),
                                             .batch = HeadBatch(s),
                                             .a_batch = QueryHeadStrides(s, s.q),
                                             .b_batch = KeyHeadStrides(k.cache.keys),
                                             .c_batch = QueryHeadStrides(s, score),
                                             .alpha = s.scale}));
  ASSIGN_OR_RETURN(k.pv, Gemm::Create(info, {.dtype = dtype,
                                             .m = s.q.positions,
                                             .n = s.v.size,
                                             .k = s.total,
                                             .a = RowMajor(s.total),
                                             .b = RowMajor(k.cache.values.row_stride),
                                             .c = RowMajor(s.y.row_stride),
                                             .batch = HeadBatch(s),
                                             .a_batch = QueryHeadStrides(s, score),
                                             .b_batch = KeyHeadStrides(k.cache.values),
                                             .c_batch = QueryHeadStrides(s, s.y)}));
  ASSIGN_OR_RETURN(k.softmax, ScoreSoftmax::Make(info, dtype, s));
  return {};
}

Result<JoinedCache> MakeCache(KernelInfo& info) {
  JoinedCache k{};
  ASSIGN_OR_RETURN(k.spec, MakeAttentionSpec(info, 0, true));
  const AttentionSpec& s = k.spec;
  const size_t element = DTypeSize(info.InputDType(0));
  k.has_keys = info.HasOutput(1);
  k.has_values = info.HasOutput(2);
  k.join = s.has_past || k.has_keys || k.has_values;
  k.keys = k.join ? HeadLayout::Rank4(s.k.heads, s.total, s.k.size) : s.k;
  k.values = k.join ? HeadLayout::Rank4(s.v.heads, s.total, s.v.size) : s.v;
  if (!k.join) return k;
  k.joined_keys = info.BookScratch(k.has_keys ? 0 : s.batch * k.keys.batch_stride * element);
  k.joined_values = info.BookScratch(k.has_values ? 0 : s.batch * k.values.batch_stride * element);
  return k;
}

// `lse`: the dtype of output 4.
void SetOutputs(KernelInfo& info, const AttentionSpec& s, DType lse) {
  const DType dtype = info.InputDType(0);
  info.SetOutput(0, dtype, OutputShape(info.InputShape(0), s));
  info.SetOutput(1, dtype, Shape{s.batch, s.k.heads, s.total, s.k.size});
  info.SetOutput(2, dtype, Shape{s.batch, s.v.heads, s.total, s.v.size});
  info.SetOutput(3, dtype, s.ScoreShape());
  info.SetOutput(4, lse, Shape{s.batch, s.q.heads, s.queries()});
}

Status CreatePlainAttention(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  AttentionKernel k{};
  ASSIGN_OR_RETURN(k.cache, MakeCache(info));
  k.spec = k.cache.spec;
  const AttentionSpec& s = k.spec;
  k.threads = info.threads();
  k.has_scores = info.HasOutput(3);
  k.has_lse = info.HasOutput(4);
  k.score_mode = info.Attr<int64_t>("qk_matmul_output_mode", 0);
  if (k.score_mode < 0 || k.score_mode > 3)
    return info.Invalid("qk_matmul_output_mode of 0 to 3 expected");
  k.scores = info.BookScratch(s.score_count() * DTypeSize(dtype));
  k.rows_are = info.BookScratch(s.batch * s.q.heads * s.q.positions);
  RETURN_IF_ERROR(MakeProducts(info, dtype, k));
  SetOutputs(info, s, dtype);
  DispatchDType<float, double>(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute(
        [k = std::move(k)](KernelContext& context) { return RunAttention<T>(k, context); });
  });
  return {};
}

Status CreateTiledAttention(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(JoinedCache cache, MakeCache(info));
  AttentionSpec spec = cache.spec;
  spec.k = cache.keys;
  spec.v = cache.values;
  SetOutputs(info, spec, DType::kFloat32);
  spec.y = HeadsOf(OutputShape(info.InputShape(0), spec), info.OutputLayout(0), spec.q.heads);
  ASSIGN_OR_RETURN(AttentionSpec whole, MakeAttentionSpec(info, 0, true, /*keep_mask=*/true));
  whole.k = spec.k;
  whole.v = spec.v;
  const TiledAttention attention = TiledAttention::Make(info, dtype, spec, whole);
  const bool has_lse = info.HasOutput(4);
  DispatchDType<float, Float16, BFloat16>(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([=](KernelContext& context) {
      const auto [keys, values] = KeysAndValues<T>(cache, context);
      attention.Run(context, {context.Input<void>(0), keys, values, Mask(whole, context),
                              Lengths(cache.spec, context), context.Output<void>(0),
                              has_lse ? context.Output<float>(4) : nullptr});
    });
  });
  return {};
}

Status CreateAttention(KernelInfo& info) {
  ASSIGN_OR_RETURN(const DType softmax, SoftmaxPrecision(info, info.InputDType(0)));
  if (info.Attr<float>("softcap", 0.0f) <= 0 && !info.HasOutput(3) && softmax == DType::kUndefined)
    return CreateTiledAttention(info);
  const bool half = info.InputDType(0) != DType::kFloat32;
  return CreateThroughDense(info, half ? ThroughFloat<CreatePlainAttention> : CreatePlainAttention);
}

}  // namespace

void RegisterAttention(KernelRegistry& registry) {
  for (const char* domain : {"", kCaesuraDomain}) {
    const std::string op_type = *domain == 0 ? "Attention" : "AttentionTraining";
    registry.Add({.op_type = op_type,
                  .domain = domain,
                  .types = {DType::kFloat32, DType::kFloat16, DType::kBFloat16},
                  .strided_inputs = {0, 1, 2},
                  .strided_outputs = {0},
                  .create = CreateAttention});
    registry.Add({.op_type = op_type,
                  .domain = domain,
                  .types = {DType::kFloat64},
                  .create = CreatePlainAttention});
  }
}

}  // namespace caesura
