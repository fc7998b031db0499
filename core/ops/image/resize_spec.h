// SPDX-License-Identifier: Apache-2.0
// Resize's attributes and inputs as taps for each axis; shared with ResizeGrad.
#ifndef CAESURA_CORE_OPS_IMAGE_RESIZE_PLAN_H_
#define CAESURA_CORE_OPS_IMAGE_RESIZE_PLAN_H_

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/kernels/walks/axis_taps.h"
#include "core/kernels/kernel.h"

namespace caesura {

struct ResizeSpec {
  Shape out;
  std::vector<AxisTaps> axes;  // one an axis of X; nearest has one tap of weight 1
  bool nearest = false;
  double fill = 0;  // attribute extrapolation_value
};

// Which inputs carry roi, scales and sizes; -1: the op has no such input. They must be host inputs.
struct ResizeInputs {
  int roi, scales, sizes;
};

// `shape` is that of X. Upsample, and Resize before version 11, map coordinates asymmetrically and
// round down.
Result<ResizeSpec> MakeResizePlan(const KernelInfo& info, const Shape& shape, ResizeInputs inputs);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_IMAGE_RESIZE_PLAN_H_
