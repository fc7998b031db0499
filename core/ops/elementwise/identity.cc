// SPDX-License-Identifier: Apache-2.0
// Identity (tensors of any type, sequences, optionals), Detach, Check.
#include <algorithm>
#include <string>

#include "core/base/status_macros.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"

namespace caesura {
namespace {

// A sequence shares its elements; a tensor that came as an optional is copied, as its bytes end
// with the step.
Status PassValueOn(KernelContext& context) {
  RuntimeValue value = context.InputValue(0);
  if (value.is_tensor()) {
    ASSIGN_OR_RETURN(Tensor copy, value.tensor().Clone());
    value = RuntimeValue(std::move(copy));
  }
  context.SetOutputValue(0, std::move(value));
  return {};
}

Status CreateIdentity(KernelInfo& info) {
  if (!info.HasInput(0) || !info.input(0).is_tensor) {
    info.SetOutputSizedInCompute(0);
    info.SetCompute(PassValueOn);
    return {};
  }
  const DType dtype = info.InputDType(0);
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, dtype, info.InputShape(0));
  info.SetCompute([dtype, count](KernelContext& context) {
    const void* x = context.Input<void>(0);
    void* y = context.Output<void>(0);
    if (x != y) CopyElements(dtype, x, y, count);
  });
  return {};
}

Status CreateCheck(KernelInfo& info) {
  if (info.InputDType(1) != DType::kBool) return info.Invalid("what is to hold must be bool");
  const DType dtype = info.InputDType(0);
  const int64_t count = info.InputShape(0).elements(), conditions = info.InputShape(1).elements();
  info.SetOutput(0, dtype, info.InputShape(0));
  info.SetCompute([=, message = info.Attr<std::string>("message", "a check failed")](
                      KernelContext& context) -> Status {
    const bool* holds = context.Input<bool>(1);
    if (!std::all_of(holds, holds + conditions, [](bool holds) { return holds; }))
      return InvalidArgument(message);
    const void* x = context.Input<void>(0);
    void* y = context.Output<void>(0);
    if (x != y) CopyElements(dtype, x, y, count);
    return {};
  });
  return {};
}

}  // namespace

void RegisterIdentity(KernelRegistry& registry) {
  registry.Add({.op_type = "Identity", .aliases = {View(0, 0)}, .create = CreateIdentity});
  registry.Add({.op_type = "Detach",
                .domain = kCaesuraDomain,
                .aliases = {View(0, 0)},
                .create = CreateIdentity});
  registry.Add({.op_type = "Check",
                .domain = kCaesuraDomain,
                .aliases = {MayReuse(0, 0)},
                .create = CreateCheck});
}

}  // namespace caesura
