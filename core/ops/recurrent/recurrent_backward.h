// SPDX-License-Identifier: Apache-2.0
// Backward through time for one direction of RNN, GRU or LSTM, after RecurrentDirection has filled
// the trace.
#ifndef CAESURA_CORE_OPS_RECURRENT_RECURRENT_BACKWARD_H_
#define CAESURA_CORE_OPS_RECURRENT_RECURRENT_BACKWARD_H_

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/gemm/gemm.h"
#include "core/ops/recurrent/recurrent_cell.h"

namespace caesura {

// The results of backward for one direction.
template <typename T>
struct RecurrentGradients {
  T* gates;  // [rows, gates * hidden]: by the gates' arguments; zero past a sample's end
  T* reset;  // GRU [rows, hidden]: with linear_before_reset by H' Rh^T + Rbh, otherwise by r H'
  T* state;  // [batch, hidden]: by H, in the end by initial_h
  T* cell_state;  // LSTM [batch, hidden]: likewise C
  T* carried;     // [rows, hidden]: products of a step with R, in X's rows

  static int64_t Count(const RecurrentSpec& s) {
    return s.rows() * (s.gate_width() + 2 * s.hidden) + 2 * s.batch * s.hidden;
  }
  static RecurrentGradients Make(const RecurrentSpec& s, T* p) {
    RecurrentGradients g;
    g.gates = p;
    g.reset = g.gates + s.rows() * s.gate_width();
    g.carried = g.reset + s.rows() * s.hidden;
    g.state = g.carried + s.rows() * s.hidden;
    g.cell_state = g.state + s.batch * s.hidden;
    return g;
  }
};

// The products of one step: what the gates' gradients mean for H'.
struct BackwardProducts {
  Gemm gates;  // carried = G R, for GRU of the first two gates, added to what the candidate gave
  Gemm candidate;  // GRU: reset = Gh Rh, or carried = Greset Rh with linear_before_reset

  static Result<BackwardProducts> Make(KernelInfo& info, DType dtype, const RecurrentSpec& s) {
    BackwardProducts out;
    const int64_t h = s.hidden, width = s.gate_width(), step = s.SampleStride();
    const bool gru = s.kind == RecurrentKind::kGru;
    GemmSpec spec{.dtype = dtype,
                  .m = s.batch,
                  .n = h,
                  .k = gru ? 2 * h : width,
                  .a = RowMajor(step * width),
                  .b = RowMajor(h),
                  .c = RowMajor(step * h),
                  .accumulate = gru};
    ASSIGN_OR_RETURN(out.gates, Gemm::Create(info, spec));
    if (!gru) return out;
    spec.k = h;
    if (s.linear_before_reset) spec.a = RowMajor(step * h);
    spec.accumulate = false;
    ASSIGN_OR_RETURN(out.candidate, Gemm::Create(info, std::move(spec)));
    return out;
  }
};

template <typename T>
class RecurrentBackward {
 public:
  RecurrentBackward(const RecurrentSpec& spec, int64_t direction, int threads,
                    const RecurrentInputs<T>& inputs, const RecurrentTrace<const T>& trace,
                    const RecurrentGradients<T>& gradients)
      : s_(spec), d_(direction), threads_(threads), in_(inputs), t_(trace), g_(gradients) {}

  // The output gradients may be null. Leaves the initial states' gradients in state and cell_state.
  Status Run(const BackwardProducts& products, KernelContext& context, const T* dy, const T* dh,
             const T* dc) {
    if (s_.batch == 0 || s_.hidden == 0) return {};  // whatever the number of steps
    const int64_t h = s_.hidden, width = s_.gate_width();
    for (int64_t b = 0; b < s_.batch; ++b) {
      const int64_t at = s_.StateRow(d_, b) * h;
      const bool is_constant = in_.IsEmpty(s_, b);  // its states are zeros
      CopyOrZero(dh == nullptr || is_constant ? nullptr : dh + at, g_.state + b * h);
      CopyOrZero(dc == nullptr || is_constant ? nullptr : dc + at, g_.cell_state + b * h);
    }
    for (int64_t step = s_.steps - 1; step >= 0; --step) {
      const int64_t t = s_.Reversed(d_) ? s_.steps - 1 - step : step, row = s_.Row(t, 0);
      EachRow([&](int64_t b) { BeginRow(t, b, dy); });
      if (s_.kind == RecurrentKind::kGru) {
        const T* r = in_.r + 2 * h * h;
        if (s_.linear_before_reset) {
          RETURN_IF_ERROR(
              products.candidate.Run(context, g_.reset + row * h, r, g_.carried + row * h));
        } else {
          RETURN_IF_ERROR(products.candidate.Run(context, g_.gates + row * width + 2 * h, r,
                                                 g_.reset + row * h));
          EachRow([&](int64_t b) { FinishResetGate(t, b); });
        }
      }
      RETURN_IF_ERROR(
          products.gates.Run(context, g_.gates + row * width, in_.r, g_.carried + row * h));
      EachRow([&](int64_t b) {
        for (int64_t i = 0; i < h; ++i) g_.state[b * h + i] += g_.carried[s_.Row(t, b) * h + i];
      });
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

  void CopyOrZero(const T* from, T* to) const {
    if (from == nullptr) std::fill_n(to, s_.hidden, T(0));
    else std::copy_n(from, s_.hidden, to);
  }

  // Gate gradients of one sample's step; `state` goes from dH to its direct part of dH'.
  void BeginRow(int64_t t, int64_t b, const T* dy) {
    const int64_t h = s_.hidden, row = s_.Row(t, b);
    T *gates = g_.gates + row * s_.gate_width(), *state = g_.state + b * h;
    std::fill_n(gates, s_.gate_width(), T(0));
    std::fill_n(g_.reset + row * h, h, T(0));
    std::fill_n(g_.carried + row * h, h, T(0));
    if (in_.lens != nullptr && t >= in_.lens[b]) return;  // the state only passed through
    if (dy != nullptr) {
      const T* from = dy + s_.OutputRow(d_, t, b) * h;
      for (int64_t i = 0; i < h; ++i) state[i] += from[i];
    }
    const T* y = t_.gates + row * s_.gate_width();
    switch (s_.kind) {
      case RecurrentKind::kRnn:
        std::copy_n(state, h, gates);
        s_.Activation(d_, 0).MultiplyDerivative(y, gates, h);
        std::fill_n(state, h, T(0));
        break;
      case RecurrentKind::kGru: BeginGru(row, y, gates, state); break;
      case RecurrentKind::kLstm: BeginLstm(row, y, gates, state, g_.cell_state + b * h); break;
    }
  }

  // H = (1 - z) n + z H'
  void BeginGru(int64_t row, const T* y, T* d, T* state) {
    const int64_t h = s_.hidden;
    const T *before = t_.before + row * h, *z = y, *r = y + h, *n = y + 2 * h;
    for (int64_t i = 0; i < h; ++i) {
      d[i] = state[i] * (before[i] - n[i]);
      d[2 * h + i] = state[i] * (1 - z[i]);
      state[i] *= z[i];
    }
    s_.Activation(d_, 0).MultiplyDerivative(z, d, h);
    s_.Activation(d_, 1).MultiplyDerivative(n, d + 2 * h, h);
    if (!s_.linear_before_reset) return;
    for (int64_t i = 0; i < h; ++i) {
      g_.reset[row * h + i] = d[2 * h + i] * r[i];
      d[h + i] = d[2 * h + i] * t_.reset[row * h + i];
    }
    s_.Activation(d_, 0).MultiplyDerivative(r, d + h, h);
  }

  // Without linear_before_reset: reset holds the gradient by r H'.
  void FinishResetGate(int64_t t, int64_t b) {
    const int64_t h = s_.hidden, row = s_.Row(t, b);
    if (in_.lens != nullptr && t >= in_.lens[b]) return;
    const T *by_product = g_.reset + row * h, *before = t_.before + row * h,
            *r = t_.gates + row * s_.gate_width() + h;
    T *d = g_.gates + row * s_.gate_width() + h, *state = g_.state + b * h;
    for (int64_t i = 0; i < h; ++i) {
      d[i] = by_product[i] * before[i];
      state[i] += by_product[i] * r[i];
    }
    s_.Activation(d_, 0).MultiplyDerivative(r, d, h);
  }

  // H = o h(C), C = f C' + i c; cell goes from dC to dC'.
  void BeginLstm(int64_t row, const T* y, T* d, T* state, T* cell) {
    const int64_t h = s_.hidden;
    const T *i_gate = y, *o_gate = y + h, *f_gate = y + 2 * h, *c_gate = y + 3 * h,
            *p = in_.peepholes;
    const T *squashed = t_.squashed + row * h, *before = t_.cell_before + row * h;
    T *di = d, *dout = d + h, *df = d + 2 * h, *dc = d + 3 * h;
    for (int64_t i = 0; i < h; ++i) {
      dout[i] = state[i] * squashed[i];
      dc[i] = state[i] * o_gate[i];
      state[i] = 0;
    }
    s_.Activation(d_, 0).MultiplyDerivative(o_gate, dout, h);
    s_.Activation(d_, 2).MultiplyDerivative(squashed, dc, h);  // by C, through H
    for (int64_t i = 0; i < h; ++i) {
      const T total = cell[i] + dc[i] + (p == nullptr ? T(0) : dout[i] * p[h + i]);
      di[i] = total * c_gate[i] - (s_.input_forget ? total * before[i] : T(0));
      df[i] = s_.input_forget ? T(0) : total * before[i];
      dc[i] = total * i_gate[i];
      cell[i] = total * f_gate[i];
    }
    s_.Activation(d_, 0).MultiplyDerivative(i_gate, di, h);
    s_.Activation(d_, 0).MultiplyDerivative(f_gate, df, h);
    s_.Activation(d_, 1).MultiplyDerivative(c_gate, dc, h);
    for (int64_t i = 0; p != nullptr && i < h; ++i) cell[i] += di[i] * p[i] + df[i] * p[2 * h + i];
  }

  const RecurrentSpec& s_;
  int64_t d_;
  int threads_;
  RecurrentInputs<T> in_;
  RecurrentTrace<const T> t_;
  RecurrentGradients<T> g_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_RECURRENT_RECURRENT_BACKWARD_H_
