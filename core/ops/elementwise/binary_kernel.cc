// SPDX-License-Identifier: Apache-2.0
#include "core/ops/elementwise/binary_kernel.h"

namespace caesura {

Result<BinaryShape> BroadcastInputs(const KernelInfo& info) {
  for (int i = 0; i < 2; ++i) {
    if (!info.HasInput(i) || !info.input(i).is_tensor) return info.Invalid("expected two tensors");
  }
  Result<Shape> output = BroadcastShape(info.InputShape(0), info.InputShape(1));
  if (!output.ok()) return info.Invalid(output.status().message());
  auto plan = MakeBroadcastPlan<2>(*output, {&info.InputShape(0), &info.InputShape(1)});
  if (!plan.ok()) return plan.status().WithPrefix(info.node().Label() + " ");
  return BinaryShape{*std::move(output), *std::move(plan)};
}

Result<BinaryShape> BroadcastSameType(const KernelInfo& info) {
  ASSIGN_OR_RETURN(BinaryShape shape, BroadcastInputs(info));
  if (info.InputDType(0) != info.InputDType(1)) {
    return info.Invalid(std::string("expected operands of one type, got ") +
                        DTypeName(info.InputDType(0)) + " and " + DTypeName(info.InputDType(1)));
  }
  return shape;
}

}  // namespace caesura
