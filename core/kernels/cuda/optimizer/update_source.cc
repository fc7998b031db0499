// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cuda/optimizer/update_source.h"

#include <algorithm>

#include "core/kernels/cuda/elementwise/element_source.h"
#include "core/kernels/cuda/optimizer/update_rules_text.h"

namespace caesura {
namespace {

const char* NameOf(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::kPlainSgd: return "PlainSgdRule";
    case UpdateRule::kSgd: return "SgdRule";
    case UpdateRule::kAdam: return "AdamRule";
    case UpdateRule::kAmsgrad: return "AmsgradRule";
    case UpdateRule::kLion: return "LionRule";
    case UpdateRule::kRmsprop: return "RmspropRule";
    case UpdateRule::kCenteredRmsprop: return "CenteredRmspropRule";
    case UpdateRule::kMomentumRmsprop: return "MomentumRmspropRule";
    case UpdateRule::kCenteredMomentumRmsprop: return "CenteredMomentumRmspropRule";
    case UpdateRule::kNAdam: return "NAdamRule";
    case UpdateRule::kRAdam: return "RAdamRule";
    case UpdateRule::kAdamax: return "AdamaxRule";
    case UpdateRule::kAdagrad: return "AdagradRule";
    case UpdateRule::kAdadelta: return "AdadeltaRule";
    case UpdateRule::kAsgd: return "AsgdRule";
    case UpdateRule::kRprop: return "RpropRule";
    case UpdateRule::kLamb: return "LambRule";
  }
  return "";
}

constexpr char kSteps[] = R"(
struct Numbers { double written[6]; i64 fed[6]; i64 rate, flag, maximize, skip_nonfinite; };
// `scale` is that of the gradients; with `skip` nothing may change.
struct Step { double learning_rate; i64 number; double coefficients[6]; double scale; int skip; };

// The gate is null, or opened: it may forbid to write. So does an error of a kernel before.
__device__ inline Step ReadStep(const R* rates, const i64* number, const Q* scale_at,
                                const Numbers& numbers, const unsigned* error,
                                const unsigned* gate) {
  Step step;
  step.learning_rate = (double)Load(rates + numbers.rate);
  step.number = *number;
  for (int k = 0; k < 6; ++k)
    step.coefficients[k] =
        numbers.fed[k] < 0 ? numbers.written[k] : (double)Load(rates + numbers.fed[k]);
  const double given = scale_at ? (double)Load(scale_at) : 1.0;
  step.scale = numbers.maximize ? -given : given;
  step.skip = step.number < 1 || (numbers.skip_nonfinite && !caesura::IsFinite(given)) ||
              *(const volatile unsigned*)error != 0 ||
              (gate != nullptr && *(const volatile unsigned*)gate != 0);
  return step;
}
)";

std::string Typedef(const char* type, const char* name) {
  return std::string("typedef ") + type + " " + name + ";\n";
}

}  // namespace

CudaUpdateNumbers::CudaUpdateNumbers(const UpdateSpec& spec, bool flag)
    : rate(spec.rate), flag(flag), maximize(spec.maximize), skip_nonfinite(spec.skip_nonfinite) {
  std::copy(spec.written.begin(), spec.written.end(), written);
  std::copy(spec.fed.begin(), spec.fed.end(), fed);
}

std::string CudaUpdateSource(const UpdateSpec& spec, UpdateRule rule) {
  const DType scale = spec.scale_dtype == DType::kUndefined ? DType::kFloat64 : spec.scale_dtype;
  return std::string(kUpdateRulesText) + "\n" + Typedef(CudaStorageType(spec.dtype), "S") +
         Typedef(CudaComputeType(spec.dtype), "C") +
         Typedef(CudaStorageType(spec.rate_dtype), "R") + Typedef(CudaStorageType(scale), "Q") +
         Typedef(CudaStorageType(spec.scalar_dtype), "V") +
         "constexpr int kScalars = " + std::to_string(spec.scalars) +
         ";\ntypedef caesura::" + NameOf(rule) + "<C> Rule;\n" + kSteps +
         "__device__ inline Rule RuleOf(const Step& step, const Numbers& numbers, V* scalars) {\n"
         "  return Rule::Of(step, numbers.flag != 0" +
         (spec.scalars > 0 ? ", scalars" : "") + ");\n}\n";
}

}  // namespace caesura
