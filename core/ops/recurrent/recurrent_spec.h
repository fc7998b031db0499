// SPDX-License-Identifier: Apache-2.0
// RNN, GRU and LSTM as numbers: what their kernels and their gradients' kernels read from a node.
#ifndef CAESURA_CORE_OPS_RECURRENT_RECURRENT_SPEC_H_
#define CAESURA_CORE_OPS_RECURRENT_RECURRENT_SPEC_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/kernels/simd/float_math.h"
#include "core/kernels/kernel.h"

namespace caesura {

// An activation of a gate. Its derivative is worked out from its result, so that backward keeps
// results only.
struct GateActivation {
  enum class Kind {
    kRelu,
    kTanh,
    kSigmoid,
    kAffine,
    kLeakyRelu,
    kThresholdedRelu,
    kScaledTanh,
    kHardSigmoid,
    kElu,
    kSoftsign,
    kSoftplus
  };
  Kind kind = Kind::kTanh;
  double alpha = 0, beta = 0;
  double clip = 0;  // bounds the argument to [-clip, clip]; 0: no bounds

  // x[i] = f(x[i]) over n elements. Inline, to be compiled for the instructions of the loop around
  // it (best_isa.h).
  template <typename T>
  void Apply(T* x, int64_t n) const;
  // d[i] *= f'(argument), where y[i] = f(argument).
  template <typename T>
  void MultiplyDerivative(const T* y, T* d, int64_t n) const;

 private:
  template <typename T>
  T Value(T x) const;
  template <typename T>
  T Derivative(T y) const;
};

enum class RecurrentKind { kRnn, kGru, kLstm };

// Gates lie in ONNX's order: RNN i; GRU z, r, h; LSTM i, o, f, c.
struct RecurrentSpec {
  RecurrentKind kind = RecurrentKind::kRnn;
  int64_t steps = 0, batch = 0, input = 0, hidden = 0, gates = 1, directions = 1;
  bool first_reversed = false;  // the only direction runs backwards in time
  bool batch_first = false;     // attribute layout
  bool linear_before_reset = false, input_forget = false;
  std::vector<GateActivation> activations;  // three a direction at most: f, g, h
  bool has_bias = false, has_lens = false, has_h = false, has_c = false, has_peepholes = false;

  int64_t gate_width() const { return gates * hidden; }
  int64_t rows() const { return steps * batch; }
  bool Reversed(int64_t direction) const { return first_reversed || direction == 1; }
  const GateActivation& Activation(int64_t direction, int which) const {
    return activations[direction * (activations.size() / directions) + which];
  }
  // Where step `t` of sample `b` lies among X's rows, and how far two samples of one step are
  // apart.
  int64_t Row(int64_t t, int64_t b) const { return batch_first ? b * steps + t : t * batch + b; }
  int64_t SampleStride() const { return batch_first ? steps : 1; }
  // Offsets, in rows of `hidden`, in Y and in the states of all directions (Y_h, initial_h, ...).
  int64_t OutputRow(int64_t direction, int64_t t, int64_t b) const {
    return batch_first ? (b * steps + t) * directions + direction
                       : (t * directions + direction) * batch + b;
  }
  int64_t StateRow(int64_t direction, int64_t b) const {
    return batch_first ? b * directions + direction : direction * batch + b;
  }
  Shape OutputShape() const {
    return batch_first ? Shape{batch, steps, directions, hidden}
                       : Shape{steps, directions, batch, hidden};
  }
  Shape StateShape() const {
    return batch_first ? Shape{batch, directions, hidden} : Shape{directions, batch, hidden};
  }
};

// Checks the node's inputs X, W, R, B?, sequence_lens?, initial_h?, and for LSTM initial_c?, P?,
// which start at input `first`. quantized: W is 8-bit [directions, input, gates * hidden], R
// [directions, hidden, gates * hidden].
Result<RecurrentSpec> MakeRecurrentSpec(const KernelInfo& info, RecurrentKind kind, int first,
                                        bool quantized = false);

template <typename T>
T GateActivation::Value(T x) const {
  const T a = static_cast<T>(alpha), b = static_cast<T>(beta);
  switch (kind) {  // comparisons that NaN fails leave it as it is
    case Kind::kRelu: return x < 0 ? T(0) : x;
    case Kind::kTanh: return math::Tanh(x);
    case Kind::kSigmoid: return math::Sigmoid(x);
    case Kind::kAffine: return a * x + b;
    case Kind::kLeakyRelu: return x < 0 ? a * x : x;
    case Kind::kThresholdedRelu: return x >= a ? x : T(0);  // 0 of NaN, as the op of that name
    case Kind::kScaledTanh: return a * std::tanh(b * x);
    case Kind::kHardSigmoid: {
      const T y = a * x + b;
      return y < 0 ? T(0) : y > 1 ? T(1) : y;
    }
    case Kind::kElu: return x < 0 ? a * std::expm1(x) : x;
    case Kind::kSoftsign: return x / (1 + std::abs(x));
    default: return std::fmax(x, T(0)) + std::log1p(std::exp(-std::abs(x)));  // Softplus
  }
}

template <typename T>
T GateActivation::Derivative(T y) const {
  const T a = static_cast<T>(alpha), b = static_cast<T>(beta);
  switch (kind) {
    case Kind::kRelu: return y > 0 ? T(1) : T(0);
    case Kind::kTanh: return 1 - y * y;
    case Kind::kSigmoid: return y * (1 - y);
    case Kind::kAffine: return a;
    case Kind::kLeakyRelu: return y < 0 ? a : T(1);
    case Kind::kThresholdedRelu: return y != 0 ? T(1) : T(0);
    case Kind::kScaledTanh: return a == 0 ? T(0) : b * (a - y * y / a);
    case Kind::kHardSigmoid: return y > 0 && y < 1 ? a : T(0);
    case Kind::kElu: return y < 0 ? y + a : T(1);
    case Kind::kSoftsign: return (1 - std::abs(y)) * (1 - std::abs(y));
    default: return -std::expm1(-y);  // Softplus
  }
}

template <typename T>
void GateActivation::Apply(T* x, int64_t n) const {
  const T bound = static_cast<T>(clip);
  for (int64_t i = 0; clip > 0 && i < n; ++i)
    x[i] = x[i] > bound ? bound : (x[i] < -bound ? -bound : x[i]);
  if (kind == Kind::kSigmoid) {  // the two usual ones, with the choice outside the loop
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[i] = math::Sigmoid(x[i]);
  } else if (kind == Kind::kTanh) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[i] = math::Tanh(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) x[i] = Value(x[i]);
  }
}

template <typename T>
void GateActivation::MultiplyDerivative(const T* y, T* d, int64_t n) const {
  if (clip > 0) {  // a result at a bound came from a clipped argument, which has no influence
    const T high = Value(static_cast<T>(clip)), low = Value(static_cast<T>(-clip));
    for (int64_t i = 0; i < n; ++i) d[i] *= y[i] == high || y[i] == low ? T(0) : T(1);
  }
  if (kind == Kind::kSigmoid) {
    for (int64_t i = 0; i < n; ++i) d[i] *= y[i] * (1 - y[i]);
  } else if (kind == Kind::kTanh) {
    for (int64_t i = 0; i < n; ++i) d[i] *= 1 - y[i] * y[i];
  } else {
    for (int64_t i = 0; i < n; ++i) d[i] *= Derivative(y[i]);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_RECURRENT_RECURRENT_SPEC_H_
