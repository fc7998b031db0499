// SPDX-License-Identifier: Apache-2.0
// Optionals (ONNX). At run time an optional that holds something is that something, and an empty
// one is an empty RuntimeValue; since opset 18 plain tensors and sequences are accepted as full
// optionals.
#include "core/base/status_macros.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"

namespace caesura {
namespace {

// Hands input 0 on. A tensor is copied: the input may lie in planned memory, and the output's owner
// may overwrite it.
Status PassOn(KernelContext& context) {
  RuntimeValue value = context.InputValue(0);
  if (value.is_tensor()) {
    ASSIGN_OR_RETURN(Tensor copy, value.tensor().Clone());
    value = std::move(copy);
  }
  context.SetOutputValue(0, std::move(value));
  return {};
}

Status CreateOptional(KernelInfo& info) {
  info.SetOutputSizedInCompute(0);
  if (info.HasInput(0)) {
    info.SetCompute(PassOn);
  } else {
    info.SetCompute([](KernelContext& context) { context.SetOutputValue(0, {}); });
  }
  return {};
}

Status CreateOptionalHasElement(KernelInfo& info) {
  info.SetOutput(0, DType::kBool, Shape{});
  info.SetCompute([given = info.HasInput(0)](KernelContext& context) {
    *context.Output<bool>(0) = given && context.InputValue(0).has_value();
  });
  return {};
}

Status CreateOptionalGetElement(KernelInfo& info) {
  if (!info.HasInput(0)) return info.Invalid("needs an input");
  info.SetOutputSizedInCompute(0);
  info.SetCompute([label = info.node().Label()](KernelContext& context) -> Status {
    if (!context.InputValue(0).has_value())
      return InvalidArgument(label + " the optional is empty");
    return PassOn(context);
  });
  return {};
}

Status CreateOptionalGetElementOfTensor(KernelInfo& info) {
  if (!info.HasInput(0) || !info.input(0).is_tensor)
    return info.Refuse("takes the tensor form only");
  const DType dtype = info.InputDType(0);
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, dtype, info.InputShape(0));
  info.SetCompute([dtype, count](KernelContext& context) {
    CopyElements(dtype, context.Input<void>(0), context.Output<void>(0), count);
  });
  return {};
}

}  // namespace

void RegisterOptional(KernelRegistry& registry) {
  registry.Add({.op_type = "Optional", .create = CreateOptional});
  registry.Add({.op_type = "OptionalHasElement", .create = CreateOptionalHasElement});
  registry.Add({.op_type = "OptionalGetElement", .create = CreateOptionalGetElementOfTensor});
  registry.Add({.op_type = "OptionalGetElement", .create = CreateOptionalGetElement});
}

}  // namespace caesura
