// SPDX-License-Identifier: Apache-2.0
// Attention, AttentionTraining and AttentionGrad (ai.caesura): by a plan of cuDNN's where it has
// one (attention_fused.h), else by products of cuBLASLt around one kernel that makes probabilities
// of scores. The scores then take batch * heads * queries * keys elements. The gradient works the
// probabilities out again.
//
// In half types, scores and all that is computed from them are float32; probabilities and slopes
// are rounded once, as operands of the next product.
#include "core/cuda/cuda_source.h"
#include "core/ops/attention/cuda_attention_fused.h"
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/cuda/cuda_product.h"
#include "core/kernels/cuda/strided_copy.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/attention/attention_spec.h"

namespace caesura {
namespace {

// The members of the struct Rows of attention.cuh, in its order.
struct RowNumbers {
  int64_t heads, queries, keys, mask_length, mask_strides[4], left, right;
  int causal;
};

RowNumbers NumbersOf(const AttentionSpec& s) {
  RowNumbers out{s.q.heads, s.q.positions, s.total, s.mask_length, {}, s.left, s.right, s.causal};
  std::copy_n(s.mask_strides, 4, out.mask_strides);
  return out;
}

// The dtype of scores.
DType ScoreType(DType dtype) { return IsHalf(dtype) ? DType::kFloat32 : dtype; }

std::string Source(const AttentionSpec& s, DType dtype, DType mask) {
  const std::string suffix = dtype == DType::kFloat64 ? "" : "f";
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  const std::string hidden =
      std::isinf(s.hidden) ? "-INFINITE" : "((C)" + CudaLiteral(dtype, s.hidden) + ")";
  return CudaMacros({{"C_TYPE", CudaComputeType(dtype)},
                     {"P_TYPE", CudaStorageType(dtype)},
                     {"M_TYPE", CudaStorageType(mask)},
                     {"EXP", "exp" + suffix},
                     {"LOG", "log" + suffix},
                     {"ROUNDS", flag(IsHalf(dtype))},
                     {"MASK", flag(s.mask != MaskKind::kNone)},
                     {"MASK_IS_BOOL", flag(s.mask == MaskKind::kBool)},
                     {"HIDDEN", hidden},
                     {"BY_MASK", flag(s.nan_rows == NanRows::kByMask)},
                     {"ZERO", flag(s.nan_rows == NanRows::kZero)}}) +
         CudaInclude("core/ops/attention/attention.cuh");
}

CudaGrid GridOf(const CudaDevice& device, const AttentionSpec& s) {
  const int64_t rows = s.batch * s.q.heads * s.q.positions;
  return {static_cast<unsigned>(std::min<int64_t>(rows, int64_t{16} * device.multiprocessors())),
          static_cast<unsigned>(std::clamp<int64_t>((s.total + 31) / 32 * 32, 32, 256))};
}

Status CheckSpec(const KernelInfo& info, const AttentionSpec& s) {
  if (s.softcap > 0) return info.Refuse("a cap of scores has no CUDA kernel");
  if (s.softmax != DType::kUndefined)
    return info.Refuse("a softmax_precision of its own has no CUDA kernel");
  if (s.has_past || s.has_lengths) return info.Refuse("a key and value cache has no CUDA kernel");
  if (s.score_count() == 0 || s.q.size == 0 || s.v.size == 0)
    return info.Refuse("there are no scores");
  return {};
}

// Two places for scores: as they are computed, and as operands of products. Both are one unless
// the operands are halves.
struct ScoreScratch {
  size_t wide = 0, operand = 0;

  static ScoreScratch Book(KernelInfo& info, const AttentionSpec& s, DType dtype) {
    const auto count = static_cast<size_t>(s.score_count());
    ScoreScratch out;
    out.wide = info.BookScratch(count * DTypeSize(ScoreType(dtype)));
    out.operand = IsHalf(dtype) ? info.BookScratch(count * DTypeSize(dtype)) : out.wide;
    return out;
  }
};

// Scores = scale * Q K^T, dense [batch, key heads, group, queries, keys].
Result<CudaProduct> ScoreProduct(KernelInfo& info, const CudaDevicePtr& device, DType dtype,
                                 const AttentionSpec& s, const HeadLayout& q, const HeadLayout& k) {
  const HeadLayout score = HeadLayout::Rank4(s.q.heads, s.q.positions, s.total);
  return CudaProduct::Create(info, device,
                             {.dtype = dtype,
                              .c_dtype = ScoreType(dtype),
                              .m = s.q.positions,
                              .n = s.total,
                              .k = s.q.size,
                              .a = {q.row_stride, q.col_stride},
                              .b = {k.col_stride, k.row_stride},
                              .c = RowMajor(s.total),
                              .a_offset = q.offset,
                              .b_offset = k.offset,
                              .batch = HeadBatch(s),
                              .a_batch = QueryHeadStrides(s, q),
                              .b_batch = KeyHeadStrides(k),
                              .c_batch = QueryHeadStrides(s, score),
                              .alpha = s.scale});
}

Status CreateAttention(KernelInfo& info, const CudaDevicePtr& device) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(const AttentionSpec s, MakeAttentionSpec(info, 0, true));
  RETURN_IF_ERROR(CheckSpec(info, s));
  for (int i = 1; i <= 3; ++i) {
    if (info.HasOutput(i)) return info.Refuse("of the outputs only Y has a CUDA kernel");
  }
  info.SetOutput(0, dtype, OutputShape(info.InputShape(0), s));
  const bool has_lse = info.HasOutput(4), has_mask = s.mask != MaskKind::kNone;
  info.SetOutput(4, ScoreType(dtype), Shape{s.batch, s.q.heads, s.q.positions});
  if (SetFusedAttention(info, device, s)) return {};
  const ScoreScratch at = ScoreScratch::Book(info, s, dtype);
  ASSIGN_OR_RETURN(CudaProduct qk, ScoreProduct(info, device, dtype, s, s.q, s.k));
  const HeadLayout score = HeadLayout::Rank4(s.q.heads, s.q.positions, s.total);
  ASSIGN_OR_RETURN(CudaProduct pv, CudaProduct::Create(info, device,
                                                       {.dtype = dtype,
                                                        .m = s.q.positions,
                                                        .n = s.v.size,
                                                        .k = s.total,
                                                        .a = RowMajor(s.total),
                                                        .b = {s.v.row_stride, s.v.col_stride},
                                                        .c = RowMajor(s.y.row_stride),
                                                        .b_offset = s.v.offset,
                                                        .batch = HeadBatch(s),
                                                        .a_batch = QueryHeadStrides(s, score),
                                                        .b_batch = KeyHeadStrides(s.v),
                                                        .c_batch = QueryHeadStrides(s, s.y)}));
  const DType mask = has_mask ? info.InputDType(3) : dtype;
  ASSIGN_OR_RETURN(const CudaKernel softmax, CudaKernel::Make(device, Source(s, dtype, mask),
                                                              "probabilities", GridOf(*device, s)));
  info.SetCompute([=, qk = std::move(qk), pv = std::move(pv), numbers = NumbersOf(s),
                   rows = s.batch * s.q.heads * s.q.positions](KernelContext& context) -> Status {
    void *scores = context.Scratch<void>(at.wide), *p = context.Scratch<void>(at.operand);
    RETURN_IF_ERROR(
        qk.Run(context, context.Input<void>(0), context.Input<void>(1), scores, nullptr, nullptr));
    RETURN_IF_ERROR(softmax.Launch(scores, has_mask ? context.Input<void>(3) : nullptr, p,
                                   has_lse ? context.Output<void>(4) : nullptr, rows, numbers));
    return pv.Run(context, p, context.Input<void>(2), context.Output<void>(0), nullptr, nullptr);
  });
  return {};
}

// A tensor of heads laid out as [batch, heads, positions, size], by a copy where it lies otherwise.
struct DenseHeads {
  std::optional<CudaStridedCopy> copy;
  size_t scratch = 0;
  HeadLayout layout;

  static Result<DenseHeads> Make(KernelInfo& info, const CudaDevicePtr& device, int64_t batch,
                                 DType dtype, const HeadLayout& from, bool needed) {
    DenseHeads out;
    out.layout = from;
    if (!needed) return out;
    out.layout = HeadLayout::Rank4(from.heads, from.positions, from.size);
    const HeadLayout& to = out.layout;
    StridedBox box{{batch, from.heads, from.positions, from.size},
                   {from.batch_stride, from.head_stride, from.row_stride, from.col_stride},
                   {to.batch_stride, to.head_stride, to.row_stride, 1},
                   from.offset,
                   0};
    ASSIGN_OR_RETURN(out.copy, CudaStridedCopy::Make(info, device, DTypeSize(dtype), box));
    out.scratch = info.BookScratch(static_cast<size_t>(batch * to.batch_stride) * DTypeSize(dtype));
    return out;
  }

  Result<const void*> Run(KernelContext& context, int input) const {
    if (!copy) return context.Input<void>(input);
    RETURN_IF_ERROR(copy->Run(context.Input<void>(input), context.Scratch<void>(scratch)));
    return static_cast<const void*>(context.Scratch<void>(scratch));
  }
};

// AttentionGrad (dY, Q, K, V, attn_mask?, Y?, lse?) -> dQ, dK, dV. dV = P^T dY, dP = dY V^T, dS by
// score_slopes, dQ = scale * dS K, dK = scale * dS^T Q; the rows of a group's heads are summed up.
class AttentionGradient {
 public:
  static Status Create(KernelInfo& info, const CudaDevicePtr& device);

 private:
  Status MakeProducts(KernelInfo& info, const CudaDevicePtr& device, DType dtype);
  Status Run(KernelContext& context) const;

  AttentionSpec s_;
  bool wanted_[3];
  ScoreScratch p_, dp_;
  DenseHeads q_, dy_;
  std::optional<CudaProduct> qk_, dv_product_, dp_product_, dq_product_, dk_product_;
  std::optional<CudaKernel> softmax_, slopes_;
};

Status AttentionGradient::MakeProducts(KernelInfo& info, const CudaDevicePtr& device, DType dtype) {
  const AttentionSpec& s = s_;
  const bool grouped = s.group() > 1;
  ASSIGN_OR_RETURN(q_, DenseHeads::Make(info, device, s.batch, dtype, s.q, grouped));
  ASSIGN_OR_RETURN(dy_, DenseHeads::Make(info, device, s.batch, dtype, s.y, grouped));
  const HeadLayout &q = q_.layout, &dy = dy_.layout;
  ASSIGN_OR_RETURN(qk_, ScoreProduct(info, device, dtype, s, q, s.k));
  // The heads of a group are rows of one matrix; scores [batch, key heads, group * queries, keys].
  const int64_t rows = s.group() * s.q.positions, keys = s.total;
  const std::vector<int64_t> batch = {s.batch, s.k.heads};
  const std::vector<int64_t> of_scores = {s.q.heads * s.q.positions * keys, rows * keys};
  auto grouped_heads = [&](const HeadLayout& layout) {
    return std::vector<int64_t>{layout.batch_stride, layout.head_stride * s.group()};
  };
  auto heads = [](const HeadLayout& layout) {
    return std::vector<int64_t>{layout.batch_stride, layout.head_stride};
  };
  // Gradients are written dense, in the shape of their input.
  auto dense = [&](int input, int64_t count) { return HeadsOf(info.InputShape(input), {}, count); };
  const HeadLayout dv = dense(3, s.k.heads), dk = dense(2, s.k.heads), dq = dense(1, s.q.heads);
  ASSIGN_OR_RETURN(dv_product_, CudaProduct::Create(info, device,
                                                    {.dtype = dtype,
                                                     .m = keys,
                                                     .n = s.v.size,
                                                     .k = rows,
                                                     .a = ColumnMajor(keys),
                                                     .b = {dy.row_stride, dy.col_stride},
                                                     .c = RowMajor(dv.row_stride),
                                                     .b_offset = dy.offset,
                                                     .batch = batch,
                                                     .a_batch = of_scores,
                                                     .b_batch = grouped_heads(dy),
                                                     .c_batch = heads(dv)}));
  ASSIGN_OR_RETURN(dp_product_, CudaProduct::Create(info, device,
                                                    {.dtype = dtype,
                                                     .c_dtype = ScoreType(dtype),
                                                     .m = rows,
                                                     .n = keys,
                                                     .k = s.v.size,
                                                     .a = {dy.row_stride, dy.col_stride},
                                                     .b = {s.v.col_stride, s.v.row_stride},
                                                     .c = RowMajor(keys),
                                                     .a_offset = dy.offset,
                                                     .b_offset = s.v.offset,
                                                     .batch = batch,
                                                     .a_batch = grouped_heads(dy),
                                                     .b_batch = heads(s.v),
                                                     .c_batch = of_scores}));
  const HeadLayout score = HeadLayout::Rank4(s.q.heads, s.q.positions, keys);
  ASSIGN_OR_RETURN(dq_product_, CudaProduct::Create(info, device,
                                                    {.dtype = dtype,
                                                     .m = s.q.positions,
                                                     .n = s.q.size,
                                                     .k = keys,
                                                     .a = RowMajor(keys),
                                                     .b = {s.k.row_stride, s.k.col_stride},
                                                     .c = RowMajor(dq.row_stride),
                                                     .b_offset = s.k.offset,
                                                     .batch = HeadBatch(s),
                                                     .a_batch = QueryHeadStrides(s, score),
                                                     .b_batch = KeyHeadStrides(s.k),
                                                     .c_batch = QueryHeadStrides(s, dq),
                                                     .alpha = s.scale}));
  ASSIGN_OR_RETURN(dk_product_, CudaProduct::Create(info, device,
                                                    {.dtype = dtype,
                                                     .m = keys,
                                                     .n = s.q.size,
                                                     .k = rows,
                                                     .a = ColumnMajor(keys),
                                                     .b = {q.row_stride, q.col_stride},
                                                     .c = RowMajor(dk.row_stride),
                                                     .b_offset = q.offset,
                                                     .batch = batch,
                                                     .a_batch = of_scores,
                                                     .b_batch = grouped_heads(q),
                                                     .c_batch = heads(dk),
                                                     .alpha = s.scale}));
  return {};
}

Status AttentionGradient::Create(KernelInfo& info, const CudaDevicePtr& device) {
  const DType dtype = info.InputDType(0);
  auto out = std::make_shared<AttentionGradient>();
  ASSIGN_OR_RETURN(out->s_, MakeAttentionSpec(info, 1, false));
  const AttentionSpec& s = out->s_;
  RETURN_IF_ERROR(CheckSpec(info, s));
  if (info.HasOutput(3)) return info.Refuse("the mask's gradient has no CUDA kernel");
  for (int i = 0; i < 3; ++i) {
    out->wanted_[i] = info.HasOutput(i);
    info.SetOutput(i, dtype, info.InputShape(i + 1));
  }
  if (SetFusedAttentionGradient(info, device, s)) return {};
  out->p_ = ScoreScratch::Book(info, s, dtype);
  out->dp_ = ScoreScratch::Book(info, s, dtype);
  RETURN_IF_ERROR(out->MakeProducts(info, device, dtype));
  const std::string source =
      Source(s, dtype, s.mask == MaskKind::kNone ? dtype : info.InputDType(4));
  ASSIGN_OR_RETURN(out->softmax_,
                   CudaKernel::Make(device, source, "probabilities", GridOf(*device, s)));
  ASSIGN_OR_RETURN(out->slopes_,
                   CudaKernel::Make(device, source, "score_slopes", GridOf(*device, s)));
  info.SetCompute([out](KernelContext& context) { return out->Run(context); });
  return {};
}

Status AttentionGradient::Run(KernelContext& context) const {
  const void *k = context.Input<void>(2), *v = context.Input<void>(3);
  void *scores = context.Scratch<void>(p_.wide), *p = context.Scratch<void>(p_.operand);
  void *dp = context.Scratch<void>(dp_.wide), *ds = context.Scratch<void>(dp_.operand);
  ASSIGN_OR_RETURN(const void* dy, dy_.Run(context, 0));
  ASSIGN_OR_RETURN(const void* q, q_.Run(context, 1));
  const int64_t rows = s_.batch * s_.q.heads * s_.q.positions;
  RETURN_IF_ERROR(qk_->Run(context, q, k, scores, nullptr, nullptr));
  RETURN_IF_ERROR(softmax_->Launch(scores,
                                   s_.mask == MaskKind::kNone ? nullptr : context.Input<void>(4), p,
                                   static_cast<void*>(nullptr), rows, NumbersOf(s_)));
  if (wanted_[2])
    RETURN_IF_ERROR(dv_product_->Run(context, p, dy, context.Output<void>(2), nullptr, nullptr));
  if (!wanted_[0] && !wanted_[1]) return {};
  RETURN_IF_ERROR(dp_product_->Run(context, dy, v, dp, nullptr, nullptr));
  RETURN_IF_ERROR(slopes_->Launch(scores, dp, ds, rows, s_.total));
  if (wanted_[0])
    RETURN_IF_ERROR(dq_product_->Run(context, ds, k, context.Output<void>(0), nullptr, nullptr));
  if (wanted_[1])
    RETURN_IF_ERROR(dk_product_->Run(context, ds, q, context.Output<void>(1), nullptr, nullptr));
  return {};
}

}  // namespace

void RegisterCudaAttention(KernelRegistry& registry, const CudaDevicePtr& device) {
  auto add = [&](const char* op, const char* domain, int first_strided, auto create) {
    registry.Add({.op_type = op,
                  .domain = domain,
                  .types = kFloatTypes,
                  .strided_inputs = {first_strided, first_strided + 1, first_strided + 2},
                  .create = [=](KernelInfo& info) { return create(info, device); }});
  };
  add("Attention", "", 0, CreateAttention);
  add("AttentionTraining", kCaesuraDomain, 0, CreateAttention);
  add("AttentionGrad", kCaesuraDomain, 1, AttentionGradient::Create);
}

}  // namespace caesura
