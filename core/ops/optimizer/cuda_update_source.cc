// SPDX-License-Identifier: Apache-2.0
#include "core/ops/optimizer/cuda_update_source.h"

#include <algorithm>

#include "core/cuda/cuda_source.h"
#include "core/kernels/cuda/element_source.h"

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

}  // namespace

CudaUpdateNumbers::CudaUpdateNumbers(const UpdateSpec& spec, bool flag)
    : rate(spec.rate),
      step_offset(spec.step_offset),
      flag(flag),
      maximize(spec.maximize),
      skip_nonfinite(spec.skip_nonfinite),
      skip_infinite(spec.skip_infinite) {
  std::copy(spec.written.begin(), spec.written.end(), written);
  std::copy(spec.fed.begin(), spec.fed.end(), fed);
}

std::string CudaUpdateMacros(const UpdateSpec& spec, UpdateRule rule) {
  const DType scale = spec.scale_dtype == DType::kUndefined ? DType::kFloat64 : spec.scale_dtype;
  return CudaMacros({{"S_TYPE", CudaStorageType(spec.dtype)},
                     {"C_TYPE", CudaComputeType(spec.dtype)},
                     {"R_TYPE", CudaStorageType(spec.rate_dtype)},
                     {"Q_TYPE", CudaStorageType(scale)},
                     {"V_TYPE", CudaStorageType(spec.scalar_dtype)},
                     {"SCALARS", std::to_string(spec.scalars)},
                     {"RULE", NameOf(rule)}});
}

}  // namespace caesura
