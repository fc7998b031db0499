// SPDX-License-Identifier: Apache-2.0
#include "training/kernels/optimizer/update_group.h"

#include <algorithm>
#include <cmath>

#include "core/base/status_macros.h"
#include "training/kernels/training_ops.h"

namespace caesura {
namespace {

Status CheckScalar(const KernelInfo& info, int input, const char* name, DTypeSet dtypes) {
  const bool fits = info.HasInput(input) && info.input(input).is_tensor &&
                    dtypes.Contains(info.InputDType(input)) &&
                    info.InputShape(input).elements() == 1;
  return fits ? Status()
              : info.Invalid(std::string(name) + " must be one element of " + dtypes.ToString());
}

double ReadScalar(const KernelContext& context, int input, DType dtype, int at = 0) {
  return dtype == DType::kFloat64 ? context.Input<double>(input)[at]
                                  : context.Input<float>(input)[at];
}

}  // namespace

double WrittenNumber(const KernelInfo& info, const char* name, double fallback) {
  const Tensor* exact = info.node().FindAttr<Tensor>(name);
  const bool fits = exact != nullptr && exact->dtype() == DType::kFloat64 && exact->elements() == 1;
  if (fits) return *exact->data<double>();
  const float* rounded = info.node().FindAttr<float>(name);
  return rounded != nullptr ? *rounded : fallback;
}

// Input 0: the learning rate; or what the attribute `fed` names, from the element `first` on.
Status UpdateGroup::FindCoefficients(const KernelInfo& info,
                                     const std::vector<Coefficient>& coefficients) {
  const auto fed = info.Attr<std::vector<std::string>>("fed", {"learning_rate"});
  const int64_t first = info.Attr<int64_t>("first", 0), count = static_cast<int64_t>(fed.size());
  const bool fits = info.HasInput(0) && info.input(0).is_tensor && first >= 0 && count > 0 &&
                    DTypeSet{DType::kFloat32, DType::kFloat64}.Contains(info.InputDType(0)) &&
                    info.InputShape(0).elements() - count >= first;
  if (!fits) {
    return info.Invalid("input 0 must be the learning rate, or " + std::to_string(count) +
                        " coefficients from element " + std::to_string(first) +
                        " on, of float32 or float64");
  }
  const auto place = [&](const std::string& name) {
    const auto found = std::find(fed.begin(), fed.end(), name);
    return found == fed.end() ? -1 : static_cast<int>(first + (found - fed.begin()));
  };
  rate_dtype_ = info.InputDType(0);
  rate_ = place("learning_rate");
  if (rate_ < 0) return info.Invalid("is fed no learning_rate");
  for (size_t i = 0; i < coefficients.size(); ++i) {
    fed_[i] = place(coefficients[i].name);
    written_[i] = WrittenNumber(info, coefficients[i].name, coefficients[i].fallback);
  }
  std::fill(fed_.begin() + coefficients.size(), fed_.end(), -1);
  return {};
}

Status UpdateGroup::CheckTensors(const KernelInfo& info) const {
  for (int i = 0; i < count_; ++i) {
    for (int kind = 0; kind < 2 + states_; ++kind) {
      const int input = kFirst + kind * count_ + i;
      if (kind >= 2 && kind < 2 + scalars_) {
        RETURN_IF_ERROR(CheckScalar(info, input, "a scalar state", {scalar_dtype_}));
        continue;
      }
      const bool fits = info.HasInput(input) && info.input(input).is_tensor &&
                        info.InputDType(input) == dtype_ &&
                        info.InputShape(input) == info.InputShape(kFirst + i);
      if (fits) continue;
      const char* what = kind == 0 ? "parameter " : kind == 1 ? "gradient " : "state of parameter ";
      return info.Invalid(what + std::to_string(i) + " must be " + DTypeName(dtype_) +
                          info.InputShape(kFirst + i).ToString());
    }
  }
  return {};
}

Result<UpdateGroup> UpdateGroup::Plan(KernelInfo& info, int states,
                                      const std::vector<Coefficient>& coefficients, int scalars) {
  const int64_t count = info.Attr<int64_t>("count", 0);
  const int64_t inputs = static_cast<int64_t>(info.node().inputs().size());
  if (count < 1 || count > inputs || inputs != kFirst + count * (2 + states) ||
      info.output_count() != count * (1 + states)) {
    return info.Invalid("with count " + std::to_string(count) + " and " + std::to_string(states) +
                        " states has " + std::to_string(inputs) + " inputs and " +
                        std::to_string(info.output_count()) + " outputs");
  }
  RETURN_IF_ERROR(CheckScalar(info, 1, "step", {DType::kInt64}));
  if (info.HasInput(2))
    RETURN_IF_ERROR(CheckScalar(info, 2, "scale", {DType::kFloat32, DType::kFloat64}));
  UpdateGroup group;
  RETURN_IF_ERROR(group.FindCoefficients(info, coefficients));
  group.label_ = info.node().Label();
  group.count_ = static_cast<int>(count);
  group.states_ = states;
  group.scalars_ = scalars;
  group.threads_ = info.threads();
  if (info.HasInput(2)) group.scale_dtype_ = info.InputDType(2);
  group.skip_nonfinite_ = info.Attr<int64_t>("skip_nonfinite", 0) != 0;
  group.maximize_ = info.Attr<int64_t>("maximize", 0) != 0;
  group.dtype_ = info.InputDType(kFirst);
  if (!kFloatTypes.Contains(group.dtype_))
    return info.Invalid("parameters must be of " + kFloatTypes.ToString());
  if (scalars > 0) {
    const int first = static_cast<int>(kFirst + 2 * count);
    RETURN_IF_ERROR(CheckScalar(info, first, "a scalar state", {DType::kFloat32, DType::kFloat64}));
    group.scalar_dtype_ = info.InputDType(first);
  }
  RETURN_IF_ERROR(group.CheckTensors(info));
  for (int i = 0; i < group.count_; ++i) {
    const Shape& shape = info.InputShape(kFirst + i);
    group.blocks_.AddTensor(i, shape.elements());
    group.bytes_.push_back(static_cast<size_t>(shape.elements()) * DTypeSize(group.dtype_));
    for (int state = -1; state < states; ++state) {
      const int input = kFirst + (state < 0 ? 0 : 2 + state) * group.count_ + i;
      const int output = (1 + state) * group.count_ + i;
      const bool is_scalar = state >= 0 && state < scalars;
      info.SetOutput(output, is_scalar ? group.scalar_dtype_ : group.dtype_,
                     is_scalar ? info.InputShape(input) : shape);
      info.SetInPlace(input, output);
    }
  }
  return group;
}

Result<UpdateStep> UpdateGroup::ReadStep(const KernelContext& context) const {
  UpdateStep step;
  step.learning_rate = ReadScalar(context, 0, rate_dtype_, rate_);
  for (size_t i = 0; i < fed_.size(); ++i) {
    step.coefficients[i] = fed_[i] < 0 ? written_[i] : ReadScalar(context, 0, rate_dtype_, fed_[i]);
  }
  step.number = *context.Input<int64_t>(1);
  if (scale_dtype_ != DType::kUndefined) step.scale = ReadScalar(context, 2, scale_dtype_);
  step.skip = skip_nonfinite_ && !std::isfinite(step.scale);
  if (maximize_) step.scale = -step.scale;
  if (step.number < 1)
    return InvalidArgument(label_ + " steps count from 1, got " + std::to_string(step.number));
  return step;
}

void UpdateGroup::CopyToOutputs(const KernelContext& context) const {
  for (int i = 0; i < count_; ++i) {
    for (int state = -1; state < states_; ++state) {
      const char* from = context.Input<char>(kFirst + (state < 0 ? 0 : 2 + state) * count_ + i);
      char* to = Updated<char>(context, state, i);
      const size_t bytes = state >= 0 && state < scalars_ ? DTypeSize(scalar_dtype_) : bytes_[i];
      if (from != to && bytes > 0) std::memcpy(to, from, bytes);
    }
  }
}

void AddUpdateKernels(KernelRegistry& registry,
                      const std::vector<std::pair<const char*, KernelFactory>>& kernels) {
  for (const auto& [op_type, create] : kernels) {
    registry.Add({.op_type = op_type,
                  .domain = kTrainingDomain,
                  .types = kFloatTypes,
                  .typed_input = 3,
                  .create = create});
  }
}

}  // namespace caesura
