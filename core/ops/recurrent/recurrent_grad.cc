// SPDX-License-Identifier: Apache-2.0
// RNNGrad, GRUGrad (dY?, dY_h?, X, W, R, B?, sequence_lens?, initial_h?) and LSTMGrad (dY?, dY_h?,
// dY_c?, X, ..., initial_c?, P?), and the forward op's trace: backward through time
// (recurrent_backward.h). With G the gradients by the gates' arguments, in rows as X:
//   dX = G W, dW = G^T X, dR = G^T H', dB = (sum of G, sum of G), dinitial_h = what is left of dH
#include "core/base/status_macros.h"
#include "core/kernels/adapters/through_float.h"
#include "core/kernels/gemm/gemm.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/recurrent/recurrent_backward.h"

namespace caesura {
namespace {

// Products over all steps of one direction.
struct WeightProducts {
  Gemm dx, dw, dr, dr_candidate;

  static Result<WeightProducts> Make(KernelInfo& info, DType dtype, const RecurrentSpec& s,
                                     bool wants_dx) {
    WeightProducts out;
    const int64_t width = s.gate_width(), h = s.hidden, rows = s.rows();
    const bool gru = s.kind == RecurrentKind::kGru;
    if (wants_dx) {
      ASSIGN_OR_RETURN(out.dx, Gemm::Create(info, {.dtype = dtype,
                                                   .m = rows,
                                                   .n = s.input,
                                                   .k = width,
                                                   .a = RowMajor(width),
                                                   .b = RowMajor(s.input),
                                                   .c = RowMajor(s.input),
                                                   .accumulate = true}));
    }
    GemmSpec spec{.dtype = dtype,
                  .m = width,
                  .n = s.input,
                  .k = rows,
                  .a = ColumnMajor(width),
                  .b = RowMajor(s.input),
                  .c = RowMajor(s.input)};
    ASSIGN_OR_RETURN(out.dw, Gemm::Create(info, spec));
    spec.m = gru ? 2 * h : width;
    spec.n = h;
    spec.b = spec.c = RowMajor(h);
    ASSIGN_OR_RETURN(out.dr, Gemm::Create(info, spec));
    if (!gru) return out;
    spec.m = h;
    if (s.linear_before_reset) spec.a = ColumnMajor(h);
    ASSIGN_OR_RETURN(out.dr_candidate, Gemm::Create(info, std::move(spec)));
    return out;
  }
};

struct RecurrentGrad {
  RecurrentSpec spec;
  int first;  // input of X: after dY, dY_h and, for LSTM, dY_c
  int trace;  // input
  int threads;
  bool has_dy, has_dh, has_dc, wanted[7];
  size_t gradients;
  BackwardProducts backward;
  WeightProducts weights;

  bool lstm() const { return spec.kind == RecurrentKind::kLstm; }
};

// out[i] = sum over rows of g[row, i].
template <typename T>
void ColumnSums(int threads, int64_t rows, int64_t width, const T* g, T* out) {
  ParallelFor(threads, width, 16 + kParallelGrain / (rows + 1), [&](int64_t first, int64_t last) {
    OnBestIsa([&] {
      std::fill_n(out + first, last - first, T(0));
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = first; i < last; ++i) out[i] += g[r * width + i];
      }
    });
  });
}

// dW, dR and dB of one direction.
template <typename T>
Status WeightGradients(const RecurrentGrad& k, KernelContext& context, int64_t d,
                       const RecurrentInputs<T>& in, const RecurrentTrace<const T>& trace,
                       const RecurrentGradients<T>& g) {
  const RecurrentSpec& s = k.spec;
  const int64_t width = s.gate_width(), h = s.hidden;
  if (k.wanted[1]) {
    RETURN_IF_ERROR(
        k.weights.dw.Run(context, g.gates, in.x, context.Output<T>(1) + d * width * s.input));
  }
  if (k.wanted[2]) {
    T* dr = context.Output<T>(2) + d * width * h;
    RETURN_IF_ERROR(k.weights.dr.Run(context, g.gates, trace.before, dr));
    if (s.kind == RecurrentKind::kGru) {
      const T* left = s.linear_before_reset ? g.reset : g.gates + 2 * h;
      const T* right = s.linear_before_reset ? trace.before : trace.reset;
      RETURN_IF_ERROR(k.weights.dr_candidate.Run(context, left, right, dr + 2 * h * h));
    }
  }
  if (k.wanted[3]) {
    T* db = context.Output<T>(3) + d * 2 * width;
    ColumnSums(k.threads, s.rows(), width, g.gates, db);
    std::copy_n(db, width, db + width);
    if (s.kind == RecurrentKind::kGru && s.linear_before_reset)
      ColumnSums(k.threads, s.rows(), h, g.reset, db + width + 2 * h);
  }
  return {};
}

// dinitial_h, dinitial_c and dP of one direction.
template <typename T>
void StateGradients(const RecurrentGrad& k, KernelContext& context, int64_t d,
                    const RecurrentTrace<const T>& trace, const RecurrentGradients<T>& g) {
  const RecurrentSpec& s = k.spec;
  const int64_t h = s.hidden;
  if (h == 0) return;
  for (int64_t b = 0; b < s.batch; ++b) {
    const int64_t at = s.StateRow(d, b) * h;
    if (k.wanted[4]) std::copy_n(g.state + b * h, h, context.Output<T>(4) + at);
    if (k.wanted[5]) std::copy_n(g.cell_state + b * h, h, context.Output<T>(5) + at);
  }
  if (!k.wanted[6]) return;
  T* dp = context.Output<T>(6) + d * 3 * h;
  std::fill_n(dp, 3 * h, T(0));
  for (int64_t row = 0; row < s.rows(); ++row) {
    const T *gates = g.gates + row * s.gate_width(), *before = trace.cell_before + row * h;
    const T* cell = trace.cell + row * h;
    for (int64_t i = 0; i < h; ++i) {
      dp[i] += gates[i] * before[i];
      dp[h + i] += gates[h + i] * cell[i];
      dp[2 * h + i] += gates[2 * h + i] * before[i];
    }
  }
}

template <typename T>
Status RunRecurrentGrad(const RecurrentGrad& k, KernelContext& context) {
  const RecurrentSpec& s = k.spec;
  const RecurrentGradients<T> g = RecurrentGradients<T>::Make(s, context.Scratch<T>(k.gradients));
  const T* dy = k.has_dy ? context.Input<T>(0) : nullptr;
  const T* dh = k.has_dh ? context.Input<T>(1) : nullptr;
  const T* dc = k.has_dc ? context.Input<T>(2) : nullptr;
  if (k.wanted[0]) std::fill_n(context.Output<T>(0), s.rows() * s.input, T(0));
  for (int64_t d = 0; d < s.directions; ++d) {
    const RecurrentInputs<T> in = InputsOfDirection<T>(s, context, k.first, d);
    const auto trace =
        RecurrentTrace<const T>::At(s, context.Input<T>(k.trace) + d * RecurrentTrace<T>::Count(s));
    RecurrentBackward<T> backward(s, d, k.threads, in, trace, g);
    RETURN_IF_ERROR(backward.Run(k.backward, context, dy, dh, dc));
    if (k.wanted[0])
      RETURN_IF_ERROR(k.weights.dx.Run(context, g.gates, in.w, context.Output<T>(0)));
    RETURN_IF_ERROR(WeightGradients(k, context, d, in, trace, g));
    StateGradients(k, context, d, trace, g);
  }
  return {};
}

void SetOutputs(KernelInfo& info, RecurrentGrad& k) {
  const RecurrentSpec& s = k.spec;
  const DType dtype = info.InputDType(k.first);
  const int64_t d = s.directions, width = s.gate_width();
  const Shape shapes[] = {info.InputShape(k.first), {d, width, s.input}, {d, width, s.hidden},
                          {d, 2 * width},           s.StateShape(),      s.StateShape(),
                          {d, 3 * s.hidden}};
  for (int i = 0; i < (k.lstm() ? 7 : 5); ++i) {
    info.SetOutput(i, dtype, shapes[i]);
    k.wanted[i] = info.HasOutput(i);
  }
}

Status CreateRecurrentGrad(KernelInfo& info, RecurrentKind kind) {
  RecurrentGrad k{};
  k.first = kind == RecurrentKind::kLstm ? 3 : 2;
  k.trace = k.first + (kind == RecurrentKind::kLstm ? 8 : 6);
  k.threads = info.threads();
  ASSIGN_OR_RETURN(k.spec, MakeRecurrentSpec(info, kind, k.first));
  const RecurrentSpec& s = k.spec;
  k.has_dy = info.HasInput(0);
  k.has_dh = info.HasInput(1);
  k.has_dc = k.lstm() && info.HasInput(2);
  if ((k.has_dy && info.InputShape(0) != s.OutputShape()) ||
      (k.has_dh && info.InputShape(1) != s.StateShape()) ||
      (k.has_dc && info.InputShape(2) != s.StateShape())) {
    return info.Invalid("gradients of the outputs' shapes expected");
  }
  const DType dtype = info.InputDType(k.first);
  SetOutputs(info, k);
  if (!info.IsTensor(k.trace) ||
      info.InputShape(k.trace) != Shape{s.directions, RecurrentTrace<float>::Count(s)})
    return info.Invalid("a trace of this op expected");
  ASSIGN_OR_RETURN(k.backward, BackwardProducts::Make(info, dtype, s));
  ASSIGN_OR_RETURN(k.weights, WeightProducts::Make(info, dtype, s, k.wanted[0]));
  DispatchDType<float, double>(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    k.gradients = info.BookScratch(RecurrentGradients<T>::Count(s) * sizeof(T));
    info.SetCompute(
        [k = std::move(k)](KernelContext& context) { return RunRecurrentGrad<T>(k, context); });
  });
  return {};
}

Status CreateRnnGrad(KernelInfo& info) { return CreateRecurrentGrad(info, RecurrentKind::kRnn); }
Status CreateGruGrad(KernelInfo& info) { return CreateRecurrentGrad(info, RecurrentKind::kGru); }
Status CreateLstmGrad(KernelInfo& info) { return CreateRecurrentGrad(info, RecurrentKind::kLstm); }

}  // namespace

void RegisterRecurrentGrad(KernelRegistry& registry) {
  constexpr DTypeSet kWide = {DType::kFloat32, DType::kFloat64},
                     kHalf = {DType::kFloat16, DType::kBFloat16};
  auto add = [&](const char* op, int x, KernelFactory wide, KernelFactory half) {
    registry.Add({.op_type = op,
                  .domain = kCaesuraDomain,
                  .types = kWide,
                  .typed_input = x,
                  .create = wide});
    registry.Add({.op_type = op,
                  .domain = kCaesuraDomain,
                  .types = kHalf,
                  .typed_input = x,
                  .create = half});
  };
  add("RNNGrad", 2, CreateRnnGrad, ThroughFloat<CreateRnnGrad>);
  add("GRUGrad", 2, CreateGruGrad, ThroughFloat<CreateGruGrad>);
  add("LSTMGrad", 3, CreateLstmGrad, ThroughFloat<CreateLstmGrad>);
}

}  // namespace caesura
