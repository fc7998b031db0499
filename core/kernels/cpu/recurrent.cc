// SPDX-License-Identifier: Apache-2.0
// RNN, GRU and LSTM: one or two directions, all activations, lengths, both layouts.
#include "core/kernels/cpu/recurrent_cell.h"

#include "core/base/status_macros.h"
#include "core/kernels/cpu/kernel_list.h"
#include "core/kernels/cpu/through_float.h"

namespace caesura {
namespace {

template <typename T>
void SetRecurrent(KernelInfo& info, const RecurrentSpec& spec, RecurrentProducts products) {
  const RecurrentScratch scratch{info.BookScratch(RecurrentScratch::Count(spec) * sizeof(T))};
  const bool has_y = info.HasOutput(0), has_h = info.HasOutput(1);
  const bool has_c = spec.kind == RecurrentKind::kLstm && info.HasOutput(2);
  const int threads = info.threads();
  info.SetCompute([=, products = std::move(products)](KernelContext& context) {
    const RecurrentTrace<T> trace = scratch.Trace<T>(spec, context);
    for (int64_t d = 0; d < spec.directions; ++d) {
      RecurrentDirection<T> direction(spec, d, threads, InputsOfDirection<T>(spec, context, 0, d), trace);
      RETURN_IF_ERROR(direction.Run(products, context, has_y ? context.Output<T>(0) : nullptr));
      for (int64_t b = 0; b < spec.batch; ++b) {
        const int64_t at = spec.StateRow(d, b) * spec.hidden, from = b * spec.hidden;
        if (has_h) std::copy_n(trace.state + from, spec.hidden, context.Output<T>(1) + at);
        if (has_c) std::copy_n(trace.cell_state + from, spec.hidden, context.Output<T>(2) + at);
      }
    }
    return Status();
  });
}

Status Create(KernelInfo& info, RecurrentKind kind) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(const RecurrentSpec spec, MakeRecurrentSpec(info, kind, 0));
  info.SetOutput(0, dtype, spec.OutputShape());
  info.SetOutput(1, dtype, spec.StateShape());
  if (kind == RecurrentKind::kLstm) info.SetOutput(2, dtype, spec.StateShape());
  ASSIGN_OR_RETURN(RecurrentProducts products, RecurrentProducts::Make(info, dtype, spec));
  if (dtype == DType::kFloat64) {
    SetRecurrent<double>(info, spec, std::move(products));
  } else {
    SetRecurrent<float>(info, spec, std::move(products));
  }
  return {};
}

Status CreateRnn(KernelInfo& info) { return Create(info, RecurrentKind::kRnn); }
Status CreateGru(KernelInfo& info) { return Create(info, RecurrentKind::kGru); }
Status CreateLstm(KernelInfo& info) { return Create(info, RecurrentKind::kLstm); }

}  // namespace

void RegisterRecurrentKernels(KernelRegistry& registry) {
  constexpr DTypeSet kWide = {DType::kFloat32, DType::kFloat64}, kHalf = {DType::kFloat16, DType::kBFloat16};
  registry.Add({.op_type = "RNN", .types = kWide, .create = CreateRnn});
  registry.Add({.op_type = "RNN", .types = kHalf, .create = ThroughFloat<CreateRnn>});
  registry.Add({.op_type = "GRU", .types = kWide, .create = CreateGru});
  registry.Add({.op_type = "GRU", .types = kHalf, .create = ThroughFloat<CreateGru>});
  registry.Add({.op_type = "LSTM", .types = kWide, .create = CreateLstm});
  registry.Add({.op_type = "LSTM", .types = kHalf, .create = ThroughFloat<CreateLstm>});
}

}  // namespace caesura
