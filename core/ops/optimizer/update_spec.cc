// SPDX-License-Identifier: Apache-2.0
#include "core/ops/optimizer/update_spec.h"

#include <algorithm>
#include <cassert>
#include <iterator>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

Status CheckScalar(const KernelInfo& info, int input, const char* name, DTypeSet dtypes) {
  const bool fits = info.HasInput(input) && info.input(input).is_tensor &&
                    dtypes.Contains(info.InputDType(input)) &&
                    info.InputShape(input).elements() == 1;
  return fits ? Status()
              : info.Invalid(std::string(name) + " must be one element of " + dtypes.ToString());
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
Status UpdateSpec::FindCoefficients(const KernelInfo& info,
                                    const std::vector<Coefficient>& coefficients) {
  const auto names = info.Attr<std::vector<std::string>>("fed", {"learning_rate"});
  const int64_t first = info.Attr<int64_t>("first", 0), given = static_cast<int64_t>(names.size());
  const bool fits = info.HasInput(0) && info.input(0).is_tensor && first >= 0 && given > 0 &&
                    DTypeSet{DType::kFloat32, DType::kFloat64}.Contains(info.InputDType(0)) &&
                    info.InputShape(0).elements() - given >= first;
  if (!fits) {
    return info.Invalid("input 0 must be the learning rate, or " + std::to_string(given) +
                        " coefficients from element " + std::to_string(first) +
                        " on, of float32 or float64");
  }
  const auto place = [&](const std::string& name) {
    const auto found = std::find(names.begin(), names.end(), name);
    return found == names.end() ? -1 : static_cast<int>(first + (found - names.begin()));
  };
  rate_dtype = info.InputDType(0);
  rate = place("learning_rate");
  if (rate < 0) return info.Invalid("is fed no learning_rate");
  step_offset = place("step_offset");
  for (size_t i = 0; i < coefficients.size(); ++i) {
    fed[i] = place(coefficients[i].name);
    written[i] = WrittenNumber(info, coefficients[i].name, coefficients[i].fallback);
  }
  std::fill(fed.begin() + coefficients.size(), fed.end(), -1);
  return {};
}

Status UpdateSpec::CheckTensors(const KernelInfo& info) const {
  for (int i = 0; i < count; ++i) {
    for (int kind = 0; kind < 2 + states; ++kind) {
      const int input = kFirst + kind * count + i;
      if (kind >= 2 && kind < 2 + scalars) {
        RETURN_IF_ERROR(CheckScalar(info, input, "a scalar state", {scalar_dtype}));
        continue;
      }
      const bool fits = info.HasInput(input) && info.input(input).is_tensor &&
                        info.InputDType(input) == dtype &&
                        info.InputShape(input) == info.InputShape(kFirst + i);
      if (fits) continue;
      const char* what = kind == 0 ? "parameter " : kind == 1 ? "gradient " : "state of parameter ";
      return info.Invalid(what + std::to_string(i) + " must be " + DTypeName(dtype) +
                          info.InputShape(kFirst + i).ToString());
    }
  }
  return {};
}

Result<UpdateSpec> UpdateSpec::Make(KernelInfo& info, int states,
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
  UpdateSpec spec;
  RETURN_IF_ERROR(spec.FindCoefficients(info, coefficients));
  spec.wrong_step = info.node().Label() + " steps count from 1, got ";
  spec.count = static_cast<int>(count);
  spec.states = states;
  spec.scalars = scalars;
  if (info.HasInput(2)) spec.scale_dtype = info.InputDType(2);
  spec.skip_nonfinite = info.Attr<int64_t>("skip_nonfinite", 0) != 0;
  spec.skip_infinite = info.Attr<int64_t>("skip_infinite", 0) != 0;
  spec.maximize = info.Attr<int64_t>("maximize", 0) != 0;
  spec.dtype = info.InputDType(kFirst);
  if (!kFloatTypes.Contains(spec.dtype))
    return info.Invalid("parameters must be of " + kFloatTypes.ToString());
  if (scalars > 0) {
    const int first = static_cast<int>(kFirst + 2 * count);
    RETURN_IF_ERROR(CheckScalar(info, first, "a scalar state", {DType::kFloat32, DType::kFloat64}));
    spec.scalar_dtype = info.InputDType(first);
  }
  RETURN_IF_ERROR(spec.CheckTensors(info));
  for (int i = 0; i < spec.count; ++i) {
    const Shape& shape = info.InputShape(kFirst + i);
    spec.elements.push_back(shape.elements());
    for (int state = -1; state < states; ++state) {
      const int input = spec.Input(state, i), output = spec.Output(state, i);
      const bool is_scalar = state >= 0 && state < scalars;
      info.SetOutput(output, is_scalar ? spec.scalar_dtype : spec.dtype,
                     is_scalar ? info.InputShape(input) : shape);
      info.SetInPlace(input, output);
    }
  }
  return spec;
}

RuleChoice ChooseRule(const KernelInfo& info) {
  const std::string& op = info.node().op_type();
  assert(op == "LambUpdate" ||
         std::find(std::begin(kRuleOps), std::end(kRuleOps), op) != std::end(kRuleOps));
  const int64_t count = info.Attr<int64_t>("count", 0);
  const auto is_set = [&](const char* name) { return info.Attr<int64_t>(name, 0) != 0; };
  if (op == "SgdUpdate") {
    const bool has_buffer = info.output_count() > count;
    return {has_buffer ? UpdateRule::kSgd : UpdateRule::kPlainSgd,
            has_buffer ? 1 : 0,
            {{"momentum", 0}, {"dampening", 0}, {"weight_decay", 0}},
            is_set("nesterov")};
  }
  if (op == "LionUpdate")
    return {UpdateRule::kLion, 1, {{"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay", 0}}};
  if (op == "RmspropUpdate") {
    const bool centered = is_set("centered");
    const bool has_buffer = info.output_count() > (2 + centered) * count;
    const UpdateRule rules[] = {UpdateRule::kRmsprop, UpdateRule::kCenteredRmsprop,
                                UpdateRule::kMomentumRmsprop, UpdateRule::kCenteredMomentumRmsprop};
    return {rules[2 * has_buffer + centered],
            1 + centered + has_buffer,
            {{"alpha", 0.99}, {"epsilon", 1e-8}, {"momentum", 0}, {"weight_decay", 0}}};
  }
  if (op == "NAdamUpdate") {
    return {UpdateRule::kNAdam,
            3,
            {{"beta1", 0.9},
             {"beta2", 0.999},
             {"epsilon", 1e-8},
             {"weight_decay", 0},
             {"momentum_decay", 4e-3}},
            is_set("decoupled_weight_decay"),
            1};
  }
  if (op == "RAdamUpdate") {
    return {UpdateRule::kRAdam,
            2,
            {{"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-8}, {"weight_decay", 0}},
            is_set("decoupled_weight_decay")};
  }
  if (op == "AdamaxUpdate") {
    return {UpdateRule::kAdamax,
            2,
            {{"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-8}, {"weight_decay", 0}}};
  }
  if (op == "AdagradUpdate")
    return {UpdateRule::kAdagrad, 1, {{"lr_decay", 0}, {"weight_decay", 0}, {"epsilon", 1e-10}}};
  if (op == "AdadeltaUpdate")
    return {UpdateRule::kAdadelta, 2, {{"rho", 0.9}, {"epsilon", 1e-6}, {"weight_decay", 0}}};
  if (op == "AsgdUpdate") {
    return {UpdateRule::kAsgd,
            3,
            {{"lambd", 1e-4}, {"alpha", 0.75}, {"t0", 1e6}, {"weight_decay", 0}},
            is_set("float64_rates"),
            2};
  }
  if (op == "RpropUpdate") {
    return {
        UpdateRule::kRprop,
        2,
        {{"eta_minus", 0.5}, {"eta_plus", 1.2}, {"step_size_min", 1e-6}, {"step_size_max", 50}}};
  }
  if (op == "LambUpdate") {
    return {UpdateRule::kLamb,
            2,
            {{"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-6}, {"weight_decay", 1e-2}}};
  }
  const bool decoupled = op == "AdamWUpdate", amsgrad = is_set("amsgrad");
  return {
      amsgrad ? UpdateRule::kAmsgrad : UpdateRule::kAdam,
      2 + amsgrad,
      {{"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-8}, {"weight_decay", decoupled ? 1e-2 : 0}},
      decoupled};
}

}  // namespace caesura
