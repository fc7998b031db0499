// SPDX-License-Identifier: Apache-2.0
// One direction of RNN, GRU or LSTM over a whole sequence, in float32 or float64. Everything that
// backward needs is kept in rows in X's order: the gates after activation, the state before each
// step, the cell.
//
//   RNN   H = f(X W^T + H' R^T + B)
//   GRU   z, r = f(...), h = g(X Wh^T + (r H') Rh^T + B) or g(X Wh^T + r (H' Rh^T + Rbh) + Wbh), H
//   = (1 - z) h + z H' LSTM  i, f = f(... + P C'), c = g(...), C = f C' + i c, o = f(... + P C), H
//   = o h(C)
#ifndef CAESURA_CORE_OPS_RECURRENT_RECURRENT_CELL_H_
#define CAESURA_CORE_OPS_RECURRENT_RECURRENT_CELL_H_

#include <algorithm>
#include <utility>

#include "core/base/status_macros.h"
#include "core/kernels/gemm/gemm.h"
#include "core/ops/recurrent/recurrent_spec.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"

namespace caesura {

// One direction's slices of the inputs; null where absent. Lengths are of all samples.
template <typename T>
struct RecurrentInputs {
  const T *x, *w, *r, *bias, *peepholes;
  const int32_t* lens;
  const T *h, *c;  // the whole of initial_h and initial_c

  // True if sample `b` has no step. Its last states, of which ONNX says nothing, are zeros, as
  // onnxruntime has them, and not the initial ones.
  bool IsEmpty(const RecurrentSpec& s, int64_t b) const {
    return s.steps == 0 || (lens != nullptr && lens[b] <= 0);
  }
};

// The values of one direction that backward reads.
template <typename T>
struct RecurrentTrace {
  T* gates;        // [rows, gates * hidden]: after activation
  T* before;       // [rows, hidden]: H'
  T* reset;        // GRU [rows, hidden]: r H', or H' Rh^T + Rbh with linear_before_reset
  T* cell;         // LSTM [rows, hidden]: C
  T* cell_before;  // LSTM [rows, hidden]: C'
  T* squashed;     // LSTM [rows, hidden]: h(C)

  static int64_t Count(const RecurrentSpec& s) {
    const int64_t fields =
        s.kind == RecurrentKind::kLstm ? 4 : (s.kind == RecurrentKind::kGru ? 2 : 1);
    return s.rows() * (s.gate_width() + fields * s.hidden);
  }
  static RecurrentTrace At(const RecurrentSpec& s, T* p) {
    RecurrentTrace t{};
    auto take = [&](int64_t width) { return std::exchange(p, p + s.rows() * width); };
    t.gates = take(s.gate_width());
    t.before = take(s.hidden);
    if (s.kind == RecurrentKind::kGru) t.reset = take(s.hidden);
    if (s.kind == RecurrentKind::kLstm) {
      for (T** field : {&t.cell, &t.cell_before, &t.squashed}) *field = take(s.hidden);
    }
    return t;
  }
};

// The matrix products of a step and of the whole sequence.
struct RecurrentProducts {
  Gemm input;      // gates += X W^T, all rows
  Gemm recurrent;  // gates += H' R^T of one step; the first two gates only for GRU
  Gemm candidate;  // GRU: gates of h += (r H') Rh^T, or reset += H' Rh^T

  static Result<RecurrentProducts> Make(KernelInfo& info, DType dtype, const RecurrentSpec& s) {
    RecurrentProducts out;
    const int64_t width = s.gate_width(), h = s.hidden, step = s.SampleStride();
    const bool gru = s.kind == RecurrentKind::kGru;
    GemmSpec spec{.dtype = dtype,
                  .m = s.rows(),
                  .n = width,
                  .k = s.input,
                  .a = RowMajor(s.input),
                  .b = ColumnMajor(s.input),
                  .c = RowMajor(width),
                  .accumulate = true};
    ASSIGN_OR_RETURN(out.input, Gemm::Create(info, spec));
    spec.m = s.batch;
    spec.n = gru ? 2 * h : width;
    spec.k = h;
    spec.a = RowMajor(step * h);
    spec.b = ColumnMajor(h);
    spec.c = RowMajor(step * width);
    ASSIGN_OR_RETURN(out.recurrent, Gemm::Create(info, spec));
    if (!gru) return out;
    spec.n = h;
    if (s.linear_before_reset) spec.c = RowMajor(step * h);
    ASSIGN_OR_RETURN(out.candidate, Gemm::Create(info, std::move(spec)));
    return out;
  }
};

template <typename T>
class RecurrentDirection {
 public:
  // state, cell_state: [batch, hidden], H and C after the last step; zeros of an empty sequence.
  RecurrentDirection(const RecurrentSpec& spec, int64_t direction, int threads,
                     const RecurrentInputs<T>& inputs, const RecurrentTrace<T>& trace, T* state,
                     T* cell_state)
      : s_(spec),
        d_(direction),
        threads_(threads),
        in_(inputs),
        t_(trace),
        state_(state),
        cell_state_(cell_state) {}

  // Fills the trace; writes this direction's part of Y where `y` is not null. `products`:
  // RecurrentProducts, or what does the same for an LSTM.
  template <typename Products>
  Status Run(const Products& products, KernelContext& context, T* y) {
    if (s_.batch == 0 || s_.hidden == 0) return {};  // whatever the number of steps
    FillBias();
    RETURN_IF_ERROR(products.input.Run(context, in_.x, in_.w, t_.gates));
    for (int64_t b = 0; b < s_.batch; ++b) {
      const int64_t at = s_.StateRow(d_, b) * s_.hidden;
      CopyState(in_.h == nullptr ? nullptr : in_.h + at, state_ + b * s_.hidden);
      if (s_.kind == RecurrentKind::kLstm)
        CopyState(in_.c == nullptr ? nullptr : in_.c + at, cell_state_ + b * s_.hidden);
    }
    for (int64_t step = 0; step < s_.steps; ++step) {
      const int64_t t = s_.Reversed(d_) ? s_.steps - 1 - step : step, row = s_.Row(t, 0);
      // Zeros for a sample that has no such step: they are not used, and do not widen the range
      // that is quantized.
      EachRow([&](int64_t b) {
        CopyState(Runs(t, b) ? state_ + b * s_.hidden : nullptr,
                  t_.before + s_.Row(t, b) * s_.hidden);
      });
      RETURN_IF_ERROR(products.recurrent.Run(context, t_.before + row * s_.hidden, in_.r,
                                             t_.gates + row * s_.gate_width()));
      if constexpr (requires { products.candidate; }) {
        if (s_.kind == RecurrentKind::kGru) RETURN_IF_ERROR(CandidateProduct(products, context, t));
      }
      EachRow([&](int64_t b) { FinishRow(t, b, y); });
    }
    for (int64_t b = 0; b < s_.batch; ++b) {
      if (!in_.IsEmpty(s_, b)) continue;
      CopyState(nullptr, state_ + b * s_.hidden);
      CopyState(nullptr, cell_state_ + b * s_.hidden);
    }
    return {};
  }

 private:
  template <typename Fn>
  void EachRow(Fn fn) {
    ParallelFor(threads_, s_.batch, 1 + kParallelGrain / (10 * s_.gate_width() + 1),
                [&](int64_t first, int64_t last) {
                  OnBestIsa([&] {
                    for (int64_t b = first; b < last; ++b) fn(b);
                  });
                });
  }

  bool Runs(int64_t t, int64_t b) const { return in_.lens == nullptr || t < in_.lens[b]; }

  void CopyState(const T* from, T* to) const {
    if (from == nullptr) std::fill_n(to, s_.hidden, T(0));
    else std::copy_n(from, s_.hidden, to);
  }

  // Bias of W and of R; the latter's last gate waits for the reset gate with linear_before_reset.
  void FillBias() {
    const int64_t width = s_.gate_width();
    const bool waits = s_.kind == RecurrentKind::kGru && s_.linear_before_reset;
    const int64_t both = waits ? 2 * s_.hidden : width;
    ParallelFor(threads_, s_.rows(), 1 + kParallelGrain / (width + 1),
                [&](int64_t first, int64_t last) {
                  for (int64_t row = first; row < last; ++row) {
                    T* gates = t_.gates + row * width;
                    if (in_.bias == nullptr) {
                      std::fill_n(gates, width, T(0));
                      continue;
                    }
                    for (int64_t i = 0; i < both; ++i) gates[i] = in_.bias[i] + in_.bias[width + i];
                    std::copy(in_.bias + both, in_.bias + width, gates + both);
                  }
                });
  }

  Status CandidateProduct(const RecurrentProducts& products, KernelContext& context, int64_t t) {
    const int64_t h = s_.hidden, width = s_.gate_width(), row = s_.Row(t, 0);
    const T* r = in_.r + 2 * h * h;
    EachRow([&](int64_t b) {
      const int64_t at = s_.Row(t, b);
      T *gates = t_.gates + at * width, *reset = t_.reset + at * h;
      const T* before = t_.before + at * h;
      s_.Activation(d_, 0).Apply(gates, 2 * h);
      if (!s_.linear_before_reset) {
        for (int64_t i = 0; i < h; ++i) reset[i] = gates[h + i] * before[i];
      } else {
        CopyState(in_.bias == nullptr ? nullptr : in_.bias + width + 2 * h, reset);
      }
    });
    if (!s_.linear_before_reset) {
      return products.candidate.Run(context, t_.reset + row * h, r, t_.gates + row * width + 2 * h);
    }
    return products.candidate.Run(context, t_.before + row * h, r, t_.reset + row * h);
  }

  // Activations of one sample's step, its new state and its row of Y. Past the sample's end the
  // state stays.
  void FinishRow(int64_t t, int64_t b, T* y) {
    const int64_t h = s_.hidden, at = s_.Row(t, b);
    T *gates = t_.gates + at * s_.gate_width(), *state = state_ + b * h;
    T* out = y == nullptr ? nullptr : y + s_.OutputRow(d_, t, b) * h;
    if (s_.kind == RecurrentKind::kLstm) CopyState(cell_state_ + b * h, t_.cell_before + at * h);
    if (!Runs(t, b)) {
      if (out != nullptr) std::fill_n(out, h, T(0));
      return;
    }
    switch (s_.kind) {
      case RecurrentKind::kRnn:
        s_.Activation(d_, 0).Apply(gates, h);
        std::copy_n(gates, h, state);
        break;
      case RecurrentKind::kGru:
        FinishGru(gates, t_.before + at * h, t_.reset + at * h, state);
        break;
      case RecurrentKind::kLstm: FinishLstm(gates, at, cell_state_ + b * h, state); break;
    }
    if (out != nullptr) std::copy_n(state, h, out);
  }

  void FinishGru(T* gates, const T* before, const T* reset, T* state) {
    const int64_t h = s_.hidden;
    T* candidate = gates + 2 * h;
    if (s_.linear_before_reset) {
      for (int64_t i = 0; i < h; ++i) candidate[i] += gates[h + i] * reset[i];
    }
    s_.Activation(d_, 1).Apply(candidate, h);
    for (int64_t i = 0; i < h; ++i) state[i] = (1 - gates[i]) * candidate[i] + gates[i] * before[i];
  }

  void FinishLstm(T* gates, int64_t row, T* cell, T* state) {
    const int64_t h = s_.hidden;
    T *input = gates, *output = gates + h, *forget = gates + 2 * h, *candidate = gates + 3 * h;
    const T* p = in_.peepholes;
    for (int64_t i = 0; p != nullptr && i < h; ++i) {
      input[i] += p[i] * cell[i];
      forget[i] += p[2 * h + i] * cell[i];
    }
    s_.Activation(d_, 0).Apply(input, h);
    if (s_.input_forget) {
      for (int64_t i = 0; i < h; ++i) forget[i] = 1 - input[i];
    } else {
      s_.Activation(d_, 0).Apply(forget, h);
    }
    s_.Activation(d_, 1).Apply(candidate, h);
    for (int64_t i = 0; i < h; ++i) cell[i] = forget[i] * cell[i] + input[i] * candidate[i];
    for (int64_t i = 0; p != nullptr && i < h; ++i) output[i] += p[h + i] * cell[i];
    s_.Activation(d_, 0).Apply(output, h);
    T *kept = t_.cell + row * h, *squashed = t_.squashed + row * h;
    std::copy_n(cell, h, kept);
    std::copy_n(cell, h, squashed);
    s_.Activation(d_, 2).Apply(squashed, h);
    for (int64_t i = 0; i < h; ++i) state[i] = output[i] * squashed[i];
  }

  const RecurrentSpec& s_;
  int64_t d_;
  int threads_;
  RecurrentInputs<T> in_;
  RecurrentTrace<T> t_;
  T *state_, *cell_state_;
};

// The slices of direction `d` of inputs that start at input `first`.
template <typename T>
RecurrentInputs<T> InputsOfDirection(const RecurrentSpec& s, KernelContext& context, int first,
                                     int64_t d) {
  const int64_t width = s.gate_width();
  RecurrentInputs<T> in{};
  in.x = context.Input<T>(first);
  in.w = context.Input<T>(first + 1) + d * width * s.input;
  in.r = context.Input<T>(first + 2) + d * width * s.hidden;
  if (s.has_bias) in.bias = context.Input<T>(first + 3) + d * 2 * width;
  if (s.has_lens) in.lens = context.Input<int32_t>(first + 4);
  if (s.has_h) in.h = context.Input<T>(first + 5);
  if (s.has_c) in.c = context.Input<T>(first + 6);
  if (s.has_peepholes) in.peepholes = context.Input<T>(first + 7) + d * 3 * s.hidden;
  return in;
}

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_RECURRENT_RECURRENT_CELL_H_
