// SPDX-License-Identifier: Apache-2.0
// AttentionGrad (dY, Q, K, V, attn_mask?, Y?, lse?) -> dQ, dK, dV, dattn_mask. With Y and lse it
// runs by tiles (attention_tiled_grad.h), unless there is a cap or the mask's gradient is wanted;
// the plain way, for all else and for float64, works all probabilities out again. With S =
// cap(scale * Q K^T) + bias, P = softmax(S), Y = P V:
//   dV = P^T dY, dP = dY V^T, dS = P * (dP - sum over keys of dP P), dmask = dS,
//   dA = scale * dS * (1 - (cap(A) / softcap)^2), dQ = dA K, dK = dA^T Q
#include "core/base/status_macros.h"
#include "core/kernels/adapters/through_dense.h"
#include "core/kernels/adapters/through_float.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/attention/attention_scores.h"
#include "core/kernels/gemm/gemm.h"
#include "core/ops/attention/attention_tiled_grad.h"

namespace caesura {
namespace {

// All tensors are first laid out as [batch, heads, positions, size].
struct AttentionGrad {
  AttentionSpec spec;
  HeadLayout q, k, v, y;
  size_t q_at, k_at, v_at, dy_at, dq_at, dk_at, dv_at, capped_at, p_at, dp_at,
      rows_are_at;  // scratch
  Gemm qk, dv, dp, dq, dk;
  ScoreSoftmax softmax;
  bool wanted[4];
  Shape mask;
  int threads;
};

int64_t Elements(const AttentionSpec& s, const HeadLayout& layout) {
  return s.batch * layout.batch_stride;
}

// dp becomes dS. The heads' rows are [query, key].
template <typename T>
void SoftmaxGradient(const AttentionGrad& g, const T* p, T* dp) {
  const int64_t n = g.spec.total, rows = g.spec.score_count() / std::max<int64_t>(1, n);
  const bool zeros = g.spec.nan_rows == NanRows::kZero;
  ParallelFor(g.threads, rows, 1 + kParallelGrain / (4 * n + 1), [=](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const T* y = p + r * n;
      T *d = dp + r * n, dot = 0;
      for (int64_t j = 0; j < n; ++j) dot += d[j] * y[j];
      // Zeros in the place of NaN: softmax's own gradient is NaN there.
      if (zeros && std::all_of(y, y + n, [](T p) { return p == 0; }))
        dot = std::numeric_limits<T>::quiet_NaN();
      for (int64_t j = 0; j < n; ++j) d[j] = y[j] * (d[j] - dot);
    }
  });
}

// Sums dS over what the mask broadcast.
template <typename T>
void MaskGradient(const AttentionGrad& g, const T* ds, T* dmask) {
  const AttentionSpec& s = g.spec;
  std::fill_n(dmask, g.mask.elements(), T(0));
  for (int64_t r = 0; r < s.batch * s.q.heads * s.q.positions; ++r) {
    const int64_t i = r % s.q.positions, head = r / s.q.positions % s.q.heads,
                  b = r / s.q.positions / s.q.heads;
    T* to = dmask + s.MaskRow(b, head, i);
    for (int64_t j = 0; j < std::min(s.total, s.mask_length); ++j)
      to[j * s.mask_strides[3]] += ds[r * s.total + j];
  }
}

// The forward pass up to the probabilities; `capped` keeps the scores before the bias where there
// is a cap.
template <typename T>
Status Probabilities(const AttentionGrad& g, KernelContext& context, T* capped, T* p) {
  const AttentionSpec& s = g.spec;
  RETURN_IF_ERROR(g.qk.Run(context, context.Scratch<T>(g.q_at), context.Scratch<T>(g.k_at), p));
  CapScores(s, g.threads, p);
  if (s.softcap > 0) std::copy_n(p, s.score_count(), capped);
  uint8_t* rows_are = context.Scratch<uint8_t>(g.rows_are_at);
  BiasScores(s, g.threads, s.mask == MaskKind::kNone ? nullptr : context.Input<void>(4), nullptr, p,
             rows_are);
  return g.softmax.Run(s, context, rows_are, p);
}

template <typename T>
void LayOutInputs(const AttentionGrad& g, KernelContext& context) {
  const AttentionSpec& s = g.spec;
  CopyHeads(s.batch, s.y, context.Input<T>(0), g.y, 0, context.Scratch<T>(g.dy_at));
  CopyHeads(s.batch, s.q, context.Input<T>(1), g.q, 0, context.Scratch<T>(g.q_at));
  CopyHeads(s.batch, s.k, context.Input<T>(2), g.k, 0, context.Scratch<T>(g.k_at));
  CopyHeads(s.batch, s.v, context.Input<T>(3), g.v, 0, context.Scratch<T>(g.v_at));
}

template <typename T>
Status RunAttentionGrad(const AttentionGrad& g, KernelContext& context) {
  const AttentionSpec& s = g.spec;
  LayOutInputs<T>(g, context);
  T *p = context.Scratch<T>(g.p_at), *dp = context.Scratch<T>(g.dp_at),
    *capped = context.Scratch<T>(g.capped_at);
  RETURN_IF_ERROR(Probabilities(g, context, capped, p));
  const T* dy = context.Scratch<T>(g.dy_at);
  if (g.wanted[2]) {
    T* dv = context.Scratch<T>(g.dv_at);
    RETURN_IF_ERROR(g.dv.Run(context, p, dy, dv));
    CopyHeads(s.batch, g.v, dv, s.v, 0, context.Output<T>(2));
  }
  if (!g.wanted[0] && !g.wanted[1] && !g.wanted[3]) return {};
  RETURN_IF_ERROR(g.dp.Run(context, dy, context.Scratch<T>(g.v_at), dp));
  SoftmaxGradient(g, p, dp);
  if (g.wanted[3]) MaskGradient(g, dp, context.Output<T>(3));
  if (s.softcap > 0) {
    const T inverse = static_cast<T>(1 / s.softcap);
    for (int64_t i = 0; i < s.score_count(); ++i)
      dp[i] *= 1 - (capped[i] * inverse) * (capped[i] * inverse);
  }
  if (g.wanted[0]) {
    T* dq = context.Scratch<T>(g.dq_at);
    RETURN_IF_ERROR(g.dq.Run(context, dp, context.Scratch<T>(g.k_at), dq));
    CopyHeads(s.batch, g.q, dq, s.q, 0, context.Output<T>(0));
  }
  if (g.wanted[1]) {
    T* dk = context.Scratch<T>(g.dk_at);
    RETURN_IF_ERROR(g.dk.Run(context, dp, context.Scratch<T>(g.q_at), dk));
    CopyHeads(s.batch, g.k, dk, s.k, 0, context.Output<T>(1));
  }
  return {};
}

// Scores [batch, key heads, group * queries, keys]: the heads of a group are rows of one matrix.
Status MakeProducts(KernelInfo& info, DType dtype, AttentionGrad& g) {
  const AttentionSpec& s = g.spec;
  const int64_t rows = s.group() * s.q.positions, keys = s.total, size = s.q.size, value = s.v.size;
  auto make = [&](int64_t m, int64_t n, int64_t k, MatrixStrides a, MatrixStrides b, double alpha) {
    return Gemm::Create(info, {.dtype = dtype,
                               .m = m,
                               .n = n,
                               .k = k,
                               .a = a,
                               .b = b,
                               .c = RowMajor(n),
                               .batch = {s.batch * s.k.heads},
                               .a_batch = {m * k},
                               .b_batch = {k * n},
                               .c_batch = {m * n},
                               .alpha = alpha});
  };
  ASSIGN_OR_RETURN(g.qk, make(rows, keys, size, RowMajor(size), ColumnMajor(size), s.scale));
  ASSIGN_OR_RETURN(g.dv, make(keys, value, rows, ColumnMajor(keys), RowMajor(value), 1));
  ASSIGN_OR_RETURN(g.dp, make(rows, keys, value, RowMajor(value), ColumnMajor(value), 1));
  ASSIGN_OR_RETURN(g.dq, make(rows, size, keys, RowMajor(keys), RowMajor(size), s.scale));
  ASSIGN_OR_RETURN(g.dk, make(keys, size, rows, ColumnMajor(keys), RowMajor(size), s.scale));
  ASSIGN_OR_RETURN(g.softmax, ScoreSoftmax::Make(info, dtype, s));
  return {};
}

void Book(KernelInfo& info, DType dtype, AttentionGrad& g) {
  const AttentionSpec& s = g.spec;
  auto book = [&](int64_t count) { return info.BookScratch(count * DTypeSize(dtype)); };
  g.q_at = book(Elements(s, g.q));
  g.k_at = book(Elements(s, g.k));
  g.v_at = book(Elements(s, g.v));
  g.dy_at = book(Elements(s, g.y));
  g.dq_at = book(Elements(s, g.q));
  g.dk_at = book(Elements(s, g.k));
  g.dv_at = book(Elements(s, g.v));
  g.p_at = book(s.score_count());
  g.dp_at = book(s.score_count());
  g.capped_at = book(s.softcap > 0 ? s.score_count() : 0);
  g.rows_are_at = info.BookScratch(s.batch * s.q.heads * s.q.positions);
}

// Checks the inputs and sets the outputs.
Result<AttentionSpec> MakeGradSpec(KernelInfo& info, bool keep_mask = false) {
  const DType dtype = info.InputDType(1);
  ASSIGN_OR_RETURN(AttentionSpec s, MakeAttentionSpec(info, 1, false, keep_mask));
  const Shape y = OutputShape(info.InputShape(1), s);
  for (int i : {0, 5}) {
    if (info.HasInput(i) && (info.InputDType(i) != dtype || info.InputShape(i) != y)) {
      return info.Invalid("input " + std::to_string(i) + ": Y's dtype and shape " + y.ToString() +
                          " expected, got " + info.InputShape(i).ToString());
    }
  }
  for (int i = 0; i < 3; ++i) info.SetOutput(i, dtype, info.InputShape(i + 1));
  if (info.HasInput(4)) info.SetOutput(3, dtype, info.InputShape(4));
  if (info.HasOutput(3) && s.mask != MaskKind::kFloat) {
    return info.Invalid("dattn_mask is wanted where the mask is no float");
  }
  return s;
}

Status CreatePlainGrad(KernelInfo& info) {
  const DType dtype = info.InputDType(1);
  AttentionGrad g{};
  ASSIGN_OR_RETURN(g.spec, MakeGradSpec(info));
  const AttentionSpec& s = g.spec;
  g.threads = info.threads();
  g.q = HeadLayout::Rank4(s.q.heads, s.q.positions, s.q.size);
  g.k = HeadLayout::Rank4(s.k.heads, s.total, s.k.size);
  g.v = HeadLayout::Rank4(s.v.heads, s.total, s.v.size);
  g.y = HeadLayout::Rank4(s.q.heads, s.q.positions, s.v.size);
  for (int i = 0; i < 4; ++i) g.wanted[i] = info.HasOutput(i);
  if (info.HasInput(4)) g.mask = info.InputShape(4);
  Book(info, dtype, g);
  RETURN_IF_ERROR(MakeProducts(info, dtype, g));
  DispatchDType<float, double>(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute(
        [g = std::move(g)](KernelContext& context) { return RunAttentionGrad<T>(g, context); });
  });
  return {};
}

Status CreateTiledGrad(KernelInfo& info) {
  ASSIGN_OR_RETURN(AttentionSpec s, MakeGradSpec(info));
  const Shape rows = {s.batch, s.q.heads, s.queries()};
  if (info.InputDType(6) != DType::kFloat32 || info.InputShape(6) != rows) {
    return info.Invalid("lse: float32 of " + rows.ToString() + " expected, got " +
                        info.InputShape(6).ToString());
  }
  auto layout = [&](int i, const Layout& l, const HeadLayout& heads) {
    return HeadsOf(info.InputShape(i), l, heads.heads);
  };
  s.y = layout(5, info.input(5).layout, s.q);
  const TiledAttentionGrad::Layouts layouts = {
      layout(0, info.input(0).layout, s.q), layout(1, info.OutputLayout(0), s.q),
      layout(2, info.OutputLayout(1), s.k), layout(3, info.OutputLayout(2), s.v)};
  ASSIGN_OR_RETURN(AttentionSpec whole, MakeGradSpec(info, /*keep_mask=*/true));
  whole.y = s.y;
  const TiledAttentionGrad grad =
      TiledAttentionGrad::Make(info, info.InputDType(1), s, whole, layouts);
  const bool wanted[] = {info.HasOutput(0), info.HasOutput(1), info.HasOutput(2)};
  const bool masked = whole.mask != MaskKind::kNone;
  info.SetCompute([=](KernelContext& context) {
    auto gradient = [&](int i) { return wanted[i] ? context.Output<void>(i) : nullptr; };
    grad.Run(context, {context.Input<void>(0), context.Input<void>(1), context.Input<void>(2),
                       context.Input<void>(3), masked ? context.Input<void>(4) : nullptr,
                       context.Input<void>(5), context.Input<float>(6), gradient(0), gradient(1),
                       gradient(2)});
  });
  return {};
}

Status CreateAttentionGrad(KernelInfo& info) {
  const bool tiled = info.HasInput(5) && info.HasInput(6) && info.Attr<float>("softcap", 0.0f) <= 0;
  if (tiled && !info.HasOutput(3)) return CreateTiledGrad(info);
  const bool half = info.InputDType(1) != DType::kFloat32;
  return CreateThroughDense(info, half ? ThroughFloat<CreatePlainGrad> : CreatePlainGrad);
}

}  // namespace

void RegisterAttentionGrad(KernelRegistry& registry) {
  registry.Add({.op_type = "AttentionGrad",
                .domain = kCaesuraDomain,
                .types = {DType::kFloat32, DType::kFloat16, DType::kBFloat16},
                .typed_input = 1,
                .strided_inputs = {0, 1, 2, 3, 5},
                .strided_outputs = {0, 1, 2},
                .create = CreateAttentionGrad});
  registry.Add({.op_type = "AttentionGrad",
                .domain = kCaesuraDomain,
                .types = {DType::kFloat64},
                .typed_input = 1,
                .create = CreatePlainGrad});
}

}  // namespace caesura
