// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/walks/batch_norm_spec.h"

#include <string>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

// X, scale, B, mean and variance, as both forward ops have them.
Result<BatchNormSpec> ReadForward(const KernelInfo& info) {
  const Shape& x = info.InputShape(0);
  if (x.rank() == 0) return info.Invalid("X of rank 1 or more expected, got a scalar");
  BatchNormSpec spec{.view = MakeChannelView(x),
                     .parameter_type = info.InputDType(1),
                     .stat_type = info.InputDType(3),
                     .epsilon = info.Attr<float>("epsilon", 1e-5f),
                     .momentum = info.Attr<float>("momentum", 0.9f)};
  for (int i = 1; i <= 4; ++i) RETURN_IF_ERROR(CheckChannelVector(info, i, spec.view.channels));
  if (info.InputDType(2) != spec.parameter_type || info.InputDType(4) != spec.stat_type) {
    return info.Invalid("scale and B, and the two statistics, must have one dtype each");
  }
  for (int i = 0; i < 5; ++i) spec.wanted[i] = info.HasOutput(i);
  return spec;
}

// Y, and `statistics` vectors.
void SetForwardOutputs(KernelInfo& info, const BatchNormSpec& spec, int statistics) {
  info.SetOutput(0, info.InputDType(0), info.InputShape(0));
  for (int i = 1; i <= statistics; ++i)
    info.SetOutput(i, spec.stat_type, Shape{spec.view.channels});
}

}  // namespace

Status CheckChannelVector(const KernelInfo& info, int input, int64_t count) {
  if (info.InputShape(input).elements() == count && info.InputShape(input).rank() <= 1) return {};
  return info.Invalid("input " + std::to_string(input) + " must have " + std::to_string(count) +
                      " elements, got " + info.InputShape(input).ToString());
}

Result<BatchNormSpec> MakeBatchNormSpec(KernelInfo& info) {
  ASSIGN_OR_RETURN(BatchNormSpec spec, ReadForward(info));
  spec.training = info.Attr<int64_t>("training_mode", 0) != 0;
  if (!spec.training && (spec.wanted[1] || spec.wanted[2]))
    return info.Invalid("statistics are outputs of training_mode=1 only");
  SetForwardOutputs(info, spec, 2);
  return spec;
}

Result<BatchNormSpec> MakeBatchNormTrainingSpec(KernelInfo& info) {
  ASSIGN_OR_RETURN(BatchNormSpec spec, ReadForward(info));
  spec.training = true;
  const double m = static_cast<double>(spec.view.per_channel());
  if (info.Attr<int64_t>("unbiased", 1) != 0 && m > 1) spec.correction = m / (m - 1);
  SetForwardOutputs(info, spec, 4);
  return spec;
}

Result<BatchNormSpec> MakeBatchNormGradSpec(KernelInfo& info) {
  const Shape& x = info.InputShape(1);
  if (info.InputShape(0) != x || x.rank() == 0)
    return info.Invalid("dY and X of one shape expected");
  if (info.InputDType(0) != info.InputDType(1))
    return info.Invalid("dY and X of one dtype expected");
  BatchNormSpec spec{.view = MakeChannelView(x),
                     .parameter_type = info.InputDType(2),
                     .stat_type = info.InputDType(3)};
  for (int i = 2; i <= 4; ++i) RETURN_IF_ERROR(CheckChannelVector(info, i, spec.view.channels));
  if (info.InputDType(4) != spec.stat_type) return info.Invalid("statistics of one dtype expected");
  for (int i = 0; i < 3; ++i) spec.wanted[i] = info.HasOutput(i);
  info.SetOutput(0, info.InputDType(0), x);
  info.SetOutput(1, spec.parameter_type, Shape{spec.view.channels});
  info.SetOutput(2, spec.parameter_type, Shape{spec.view.channels});
  return spec;
}

}  // namespace caesura
