// SPDX-License-Identifier: Apache-2.0
// RNN, GRU and LSTM: one or two directions, all activations, lengths, both layouts. RNNTraining,
// GRUTraining and LSTMTraining (ai.caesura) have one more output, the trace that backward reads.
#include "core/kernels/kernel_registry.h"
#include "core/ops/recurrent/recurrent_cell.h"

#include "core/base/status_macros.h"
#include "core/kernels/adapters/through_float.h"

namespace caesura {
namespace {

// Steps past a sample's end leave their rows as they are: whatever lies there must not be NaN where
// it meets a zero.
template <typename T>
void ClearTrace(const RecurrentSpec& s, const RecurrentTrace<T>& trace) {
  for (T* field : {trace.reset, trace.cell, trace.squashed}) {
    if (field != nullptr) std::fill_n(field, s.rows() * s.hidden, T(0));
  }
}

template <typename T>
void SetRecurrent(KernelInfo& info, const RecurrentSpec& spec, RecurrentProducts products,
                  int trace_output) {
  const int64_t trace_count = RecurrentTrace<T>::Count(spec),
                state_count = spec.batch * spec.hidden;
  const bool has_y = info.HasOutput(0), has_h = info.HasOutput(1),
             keeps_trace = info.HasOutput(trace_output);
  const bool has_c = spec.kind == RecurrentKind::kLstm && info.HasOutput(2);
  const size_t scratch =
      info.BookScratch((2 * state_count + (keeps_trace ? 0 : trace_count)) * sizeof(T));
  const int threads = info.threads();
  info.SetCompute([=, products = std::move(products)](KernelContext& context) {
    T *state = context.Scratch<T>(scratch), *cell_state = state + state_count;
    for (int64_t d = 0; d < spec.directions; ++d) {
      T* kept = keeps_trace ? context.Output<T>(trace_output) + d * trace_count
                            : cell_state + state_count;
      const auto trace = RecurrentTrace<T>::At(spec, kept);
      if (keeps_trace && spec.has_lens) ClearTrace(spec, trace);
      RecurrentDirection<T> direction(spec, d, threads, InputsOfDirection<T>(spec, context, 0, d),
                                      trace, state, cell_state);
      RETURN_IF_ERROR(direction.Run(products, context, has_y ? context.Output<T>(0) : nullptr));
      for (int64_t b = 0; b < spec.batch && spec.hidden > 0; ++b) {
        const int64_t at = spec.StateRow(d, b) * spec.hidden, from = b * spec.hidden;
        if (has_h) std::copy_n(state + from, spec.hidden, context.Output<T>(1) + at);
        if (has_c) std::copy_n(cell_state + from, spec.hidden, context.Output<T>(2) + at);
      }
    }
    return Status();
  });
}

Status Create(KernelInfo& info, RecurrentKind kind) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(const RecurrentSpec spec, MakeRecurrentSpec(info, kind, 0));
  const int trace_output = kind == RecurrentKind::kLstm ? 3 : 2;
  info.SetOutput(0, dtype, spec.OutputShape());
  info.SetOutput(1, dtype, spec.StateShape());
  if (kind == RecurrentKind::kLstm) info.SetOutput(2, dtype, spec.StateShape());
  if (info.HasOutput(trace_output)) {
    info.SetOutput(trace_output, dtype, {spec.directions, RecurrentTrace<float>::Count(spec)});
  }
  ASSIGN_OR_RETURN(RecurrentProducts products, RecurrentProducts::Make(info, dtype, spec));
  if (dtype == DType::kFloat64) {
    SetRecurrent<double>(info, spec, std::move(products), trace_output);
  } else {
    SetRecurrent<float>(info, spec, std::move(products), trace_output);
  }
  return {};
}

Status CreateRnn(KernelInfo& info) { return Create(info, RecurrentKind::kRnn); }
Status CreateGru(KernelInfo& info) { return Create(info, RecurrentKind::kGru); }
Status CreateLstm(KernelInfo& info) { return Create(info, RecurrentKind::kLstm); }

}  // namespace

void RegisterRecurrent(KernelRegistry& registry) {
  constexpr DTypeSet kWide = {DType::kFloat32, DType::kFloat64},
                     kHalf = {DType::kFloat16, DType::kBFloat16};
  const auto add = [&](const std::string& op, KernelFactory wide, KernelFactory half) {
    for (const auto& [name, domain] :
         {std::pair(op, ""), std::pair(op + "Training", kCaesuraDomain)}) {
      registry.Add({.op_type = name, .domain = domain, .types = kWide, .create = wide});
      registry.Add({.op_type = name, .domain = domain, .types = kHalf, .create = half});
    }
  };
  add("RNN", CreateRnn, ThroughFloat<CreateRnn>);
  add("GRU", CreateGru, ThroughFloat<CreateGru>);
  add("LSTM", CreateLstm, ThroughFloat<CreateLstm>);
}

}  // namespace caesura
