// SPDX-License-Identifier: Apache-2.0
#include "core/ops/optimizer/update_group.h"

#include <algorithm>
#include <cmath>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

double ReadScalar(const KernelContext& context, int input, DType dtype, int at = 0) {
  return dtype == DType::kFloat64 ? context.Input<double>(input)[at]
                                  : context.Input<float>(input)[at];
}

}  // namespace

Result<UpdateGroup> UpdateGroup::Plan(KernelInfo& info, int states,
                                      const std::vector<Coefficient>& coefficients, int scalars) {
  UpdateGroup group;
  ASSIGN_OR_RETURN(group.spec_, UpdateSpec::Make(info, states, coefficients, scalars));
  group.threads_ = info.threads();
  for (int i = 0; i < group.count(); ++i) group.blocks_.AddTensor(i, group.spec_.elements[i]);
  return group;
}

Result<Hyperparameters> UpdateGroup::ReadHyperparameters(const KernelContext& context) const {
  Hyperparameters step;
  step.learning_rate = ReadScalar(context, 0, spec_.rate_dtype, spec_.rate);
  for (size_t i = 0; i < spec_.fed.size(); ++i) {
    step.coefficients[i] = spec_.fed[i] < 0
                               ? spec_.written[i]
                               : ReadScalar(context, 0, spec_.rate_dtype, spec_.fed[i]);
  }
  step.number = *context.Input<int64_t>(1);
  if (spec_.step_offset >= 0)
    step.number +=
        static_cast<int64_t>(ReadScalar(context, 0, spec_.rate_dtype, spec_.step_offset));
  if (spec_.scale_dtype != DType::kUndefined)
    step.scale = ReadScalar(context, 2, spec_.scale_dtype);
  step.skip = (spec_.skip_nonfinite && !std::isfinite(step.scale)) ||
              (spec_.skip_infinite && std::isinf(step.scale));
  if (spec_.maximize) step.scale = -step.scale;
  if (step.number < 1) return InvalidArgument(spec_.wrong_step + std::to_string(step.number));
  return step;
}

void UpdateGroup::CopyToOutputs(const KernelContext& context) const {
  for (int i = 0; i < spec_.count; ++i) {
    for (int state = -1; state < spec_.states; ++state) {
      const char* from = context.Input<char>(spec_.Input(state, i));
      char* to = Updated<char>(context, state, i);
      const bool is_scalar = state >= 0 && state < spec_.scalars;
      const size_t bytes = is_scalar ? DTypeSize(spec_.scalar_dtype)
                                     : static_cast<size_t>(spec_.elements[i]) * DTypeSize(dtype());
      if (from != to && bytes > 0) std::memcpy(to, from, bytes);
    }
  }
}

void AddUpdateKernels(KernelRegistry& registry,
                      const std::vector<std::pair<const char*, KernelFactory>>& kernels) {
  for (const auto& [op_type, create] : kernels) {
    registry.Add({.op_type = op_type,
                  .domain = kCaesuraDomain,
                  .types = kFloatTypes,
                  .typed_input = 3,
                  .create = create});
  }
}

}  // namespace caesura
