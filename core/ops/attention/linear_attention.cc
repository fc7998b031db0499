// SPDX-License-Identifier: Apache-2.0
// LinearAttention: a state [d_k, d_v] a head that each token decays, corrects, writes and reads:
//   S = exp(g) S;  v' = beta (v - S^T k) for the delta rules;  S = S + k v'^T;  o = scale * S^T q
#include <cmath>
#include <vector>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/simd/row_math.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

struct LinearAttention {
  int64_t batch, length, q_heads, kv_heads, dk, dv;
  bool gated, delta, has_past, has_state;
  int64_t decay_width, beta_width;  // last dims of the inputs
  double scale;
  DType state_type;
  size_t state, row;  // scratch: [batch, kv_heads, dk, dv], and one v' a head

  int64_t group() const { return q_heads / kv_heads; }
};

// One head of one sample over all tokens.
template <typename T>
void RunHead(const LinearAttention& a, KernelContext& context, int64_t b, int64_t head,
             Accumulator<T>* state, Accumulator<T>* written) {
  using Acc = Accumulator<T>;
  const T* decay = a.gated ? context.Input<T>(4) : nullptr;
  const T* beta = a.delta ? context.Input<T>(5) : nullptr;
  for (int64_t t = 0; t < a.length; ++t) {
    const int64_t token = b * a.length + t;
    const T* k = context.Input<T>(1) + (token * a.kv_heads + head) * a.dk;
    const T* v = context.Input<T>(2) + (token * a.kv_heads + head) * a.dv;
    for (int64_t i = 0; decay != nullptr && i < a.dk; ++i) {
      const int64_t at = a.decay_width == a.kv_heads ? head : head * a.dk + i;
      const Acc factor = std::exp(static_cast<Acc>(decay[token * a.decay_width + at]));
      for (int64_t j = 0; j < a.dv; ++j) state[i * a.dv + j] *= factor;
    }
    for (int64_t j = 0; j < a.dv; ++j) written[j] = v[j];
    if (beta != nullptr) {
      for (int64_t i = 0; i < a.dk; ++i) {
        const Acc key = k[i];
        for (int64_t j = 0; j < a.dv; ++j) written[j] -= key * state[i * a.dv + j];
      }
      const Acc rate = beta[token * a.beta_width + (a.beta_width == 1 ? 0 : head)];
      for (int64_t j = 0; j < a.dv; ++j) written[j] *= rate;
    }
    for (int64_t i = 0; i < a.dk; ++i) {
      const Acc key = k[i];
      for (int64_t j = 0; j < a.dv; ++j) state[i * a.dv + j] += key * written[j];
    }
    for (int64_t g = head * a.group(); g < (head + 1) * a.group(); ++g) {
      const T* q = context.Input<T>(0) + (token * a.q_heads + g) * a.dk;
      std::fill_n(written, a.dv, Acc(0));
      for (int64_t i = 0; i < a.dk; ++i) {
        const Acc query = q[i];
        for (int64_t j = 0; j < a.dv; ++j) written[j] += query * state[i * a.dv + j];
      }
      T* out = context.Output<T>(0) + (token * a.q_heads + g) * a.dv;
      for (int64_t j = 0; j < a.dv; ++j) out[j] = T(static_cast<Acc>(a.scale) * written[j]);
    }
  }
}

template <typename T>
void SetLinearAttention(KernelInfo& info, LinearAttention a) {
  using Acc = Accumulator<T>;
  const int64_t heads = a.batch * a.kv_heads, size = a.dk * a.dv;
  a.state = info.BookScratch(heads * size * sizeof(Acc));
  a.row = info.BookScratch(heads * a.dv * sizeof(Acc));
  const int threads = info.threads();
  info.SetCompute([=](KernelContext& context) {
    Acc *state = context.Scratch<Acc>(a.state), *row = context.Scratch<Acc>(a.row);
    if (a.has_past) LoadFloats(a.state_type, context.Input<void>(3), heads * size, state);
    else std::fill_n(state, heads * size, Acc(0));
    ParallelFor(threads, heads, 1 + kParallelGrain / (a.length * size * 4 + 1),
                [&](int64_t first, int64_t last) {
                  for (int64_t h = first; h < last; ++h) {
                    RunHead<T>(a, context, h / a.kv_heads, h % a.kv_heads, state + h * size,
                               row + h * a.dv);
                  }
                });
    if (a.has_state) StoreFloats(a.state_type, state, heads * size, context.Output<void>(1));
  });
}

// The width of the packed input `input`, whose first dims must be [batch, length].
Result<int64_t> PackedWidth(const KernelInfo& info, int input, int64_t batch, int64_t length) {
  RETURN_IF_ERROR(CheckRank(info, input, 3));
  const Shape& x = info.InputShape(input);
  if (x[0] != batch || x[1] != length)
    return info.Invalid("inputs of one batch and length expected");
  return x[2];
}

Status ReadGates(const KernelInfo& info, LinearAttention& a) {
  const std::string rule = info.Attr<std::string>("update_rule", "gated_delta");
  if (rule != "linear" && rule != "gated" && rule != "delta" && rule != "gated_delta") {
    return info.Invalid("update_rule has a bad value '" + rule + "'");
  }
  a.gated = rule == "gated" || rule == "gated_delta";
  a.delta = rule == "delta" || rule == "gated_delta";
  if (info.HasInput(4) != a.gated || info.HasInput(5) != a.delta) {
    return info.Invalid("decay and beta must be there exactly where update_rule '" + rule +
                        "' reads them");
  }
  if (a.gated) {
    ASSIGN_OR_RETURN(a.decay_width, PackedWidth(info, 4, a.batch, a.length));
    if (a.decay_width != a.kv_heads && a.decay_width != a.kv_heads * a.dk)
      return info.Invalid("decay does not fit");
  }
  if (a.delta) {
    ASSIGN_OR_RETURN(a.beta_width, PackedWidth(info, 5, a.batch, a.length));
    if (a.beta_width != a.kv_heads && a.beta_width != 1) return info.Invalid("beta does not fit");
  }
  return {};
}

Status CreateLinearAttention(KernelInfo& info) {
  RETURN_IF_ERROR(CheckRank(info, 0, 3));
  const Shape& q = info.InputShape(0);
  LinearAttention a{};
  a.batch = q[0];
  a.length = q[1];
  a.q_heads = info.Attr<int64_t>("q_num_heads", 0);
  a.kv_heads = info.Attr<int64_t>("kv_num_heads", 0);
  if (a.q_heads <= 0 || a.kv_heads <= 0 || a.q_heads % a.kv_heads != 0 || q[2] % a.q_heads != 0) {
    return info.Invalid("q_num_heads must be a multiple of kv_num_heads and divide " +
                        q.ToString());
  }
  a.dk = q[2] / a.q_heads;
  ASSIGN_OR_RETURN(const int64_t key_width, PackedWidth(info, 1, a.batch, a.length));
  ASSIGN_OR_RETURN(const int64_t value_width, PackedWidth(info, 2, a.batch, a.length));
  if (key_width != a.kv_heads * a.dk || value_width % a.kv_heads != 0)
    return info.Invalid("key or value does not fit");
  a.dv = value_width / a.kv_heads;
  RETURN_IF_ERROR(ReadGates(info, a));
  for (int i : {1, 2, 4, 5}) {
    if (info.HasInput(i)) RETURN_IF_ERROR(CheckDType(info, i, {info.InputDType(0)}));
  }
  const double scale = info.Attr<float>("scale", 0.0f);
  a.scale = scale == 0 ? 1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, a.dk))) : scale;
  const Shape state{a.batch, a.kv_heads, a.dk, a.dv};
  a.has_past = info.HasInput(3);
  a.has_state = info.HasOutput(1);
  a.state_type = a.has_past ? info.InputDType(3) : info.InputDType(0);
  if (a.has_past && (info.InputShape(3) != state || !kFloatTypes.Contains(a.state_type))) {
    return info.Invalid("past_state " + state.ToString() + " expected, got " +
                        info.InputShape(3).ToString());
  }
  info.SetOutput(0, info.InputDType(0), Shape{a.batch, a.length, a.q_heads * a.dv});
  info.SetOutput(1, a.state_type, state);
  DispatchFloat(info.InputDType(0),
                [&](auto tag) { SetLinearAttention<typename decltype(tag)::type>(info, a); });
  return {};
}

}  // namespace

void RegisterLinearAttention(KernelRegistry& registry) {
  registry.Add(
      {.op_type = "LinearAttention", .types = kFloatTypes, .create = CreateLinearAttention});
}

}  // namespace caesura
