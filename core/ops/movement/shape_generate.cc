// SPDX-License-Identifier: Apache-2.0
// Ops that make a tensor from a few numbers: Constant, ConstantOfShape, Range, EyeLike.
#include <algorithm>
#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/walks/strided_copy.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

template <typename T>
Tensor ListTensor(const std::vector<T>& values) {
  return Tensor::Of<T>(Shape{static_cast<int64_t>(values.size())}, values);
}

// The tensor that the one value attribute of a Constant stands for; undefined when there is none.
Tensor ConstantValue(const Node& node) {
  for (const char* name : {"value", "sparse_value"}) {
    if (const Tensor* value = node.FindAttr<Tensor>(name)) return *value;
  }
  if (const auto* value = node.FindAttr<float>("value_float")) return Tensor::Scalar<float>(*value);
  if (const auto* value = node.FindAttr<int64_t>("value_int"))
    return Tensor::Scalar<int64_t>(*value);
  if (const auto* value = node.FindAttr<std::string>("value_string"))
    return Tensor::Scalar<std::string>(*value);
  if (const auto* value = node.FindAttr<std::vector<float>>("value_floats"))
    return ListTensor(*value);
  if (const auto* value = node.FindAttr<std::vector<int64_t>>("value_ints"))
    return ListTensor(*value);
  if (const auto* value = node.FindAttr<std::vector<std::string>>("value_strings"))
    return ListTensor(*value);
  return {};
}

Status CreateConstant(KernelInfo& info) {
  Tensor value = ConstantValue(info.node());
  if (!value.defined()) return info.Refuse("has no value attribute that the kernel can read");
  info.SetOutput(0, value.dtype(), value.shape());
  info.SetCompute([value](KernelContext& context) {
    CopyElements(value.dtype(), value.raw(), context.Output<void>(0), value.elements());
  });
  return {};
}

Status CreateConstantOfShape(KernelInfo& info) {
  const Tensor value = info.Attr<Tensor>("value", Tensor::Scalar<float>(0.0f));
  if (!value.defined() || value.elements() != 1) return info.Invalid("value: expected one element");
  ASSIGN_OR_RETURN(Shape shape, CheckDims(info, info.HostInts(0), value.dtype()));
  const int64_t count = shape.elements();
  info.SetOutput(0, value.dtype(), std::move(shape));
  info.SetCompute([value, count](KernelContext& context) {
    FillElements(value.dtype(), value.raw(), context.Output<void>(0), count);
  });
  return {};
}

// max(ceil((limit - start) / delta), 0), without overflow; -1 when delta is 0 or the count is
// absurd.
int64_t RangeCount(int64_t start, int64_t limit, int64_t delta) {
  if (delta == 0) return -1;
  if (delta > 0 ? limit <= start : limit >= start) return 0;
  const uint64_t length = delta > 0 ? static_cast<uint64_t>(limit) - static_cast<uint64_t>(start)
                                    : static_cast<uint64_t>(start) - static_cast<uint64_t>(limit);
  const uint64_t step = delta > 0 ? static_cast<uint64_t>(delta) : 0 - static_cast<uint64_t>(delta);
  const uint64_t count = (length - 1) / step + 1;
  return count > (uint64_t{1} << 48) ? -1 : static_cast<int64_t>(count);
}

int64_t RangeCount(double start, double limit, double delta) {
  const double count = std::ceil((limit - start) / delta);
  if (!(std::abs(count) < 0x1p48)) return -1;
  return std::max<int64_t>(0, static_cast<int64_t>(count));
}

// Integers are exact; floats are computed in double whatever `stash_type` says, which is at least
// as precise.
template <typename T>
Status SetRange(KernelInfo& info) {
  using Wide = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
  const Wide start = info.InputValue(0)->ToVector<Wide>()[0],
             limit = info.InputValue(1)->ToVector<Wide>()[0],
             delta = info.InputValue(2)->ToVector<Wide>()[0];
  const int64_t count = RangeCount(start, limit, delta);
  if (count < 0)
    return info.Invalid(
        "expected a delta that leads from start to limit in a finite number of steps");
  ASSIGN_OR_RETURN(Shape shape, CheckDims(info, {count}, kDTypeOf<T>));
  info.SetOutput(0, kDTypeOf<T>, std::move(shape));
  info.SetCompute([start, delta, count](KernelContext& context) {
    T* y = context.Output<T>(0);
    for (int64_t i = 0; i < count; ++i) y[i] = static_cast<T>(start + static_cast<Wide>(i) * delta);
  });
  return {};
}

Status CreateRange(KernelInfo& info) {
  for (int i = 0; i < 3; ++i) {
    if (!info.HasInput(i) || info.InputValue(i) == nullptr || info.InputShape(i).elements() != 1 ||
        info.InputDType(i) != info.InputDType(0)) {
      return info.Invalid("start, limit, delta: expected three scalars of one type");
    }
  }
  Status status = info.Refuse(std::string("takes no ") + DTypeName(info.InputDType(0)));
  DispatchNumeric(info.InputDType(0),
                  [&](auto tag) { status = SetRange<typename decltype(tag)::type>(info); });
  return status;
}

Status CreateEyeLike(KernelInfo& info) {
  RETURN_IF_ERROR(CheckRank(info, 0, 2));
  const Shape shape = info.InputShape(0);
  const int64_t dtype_number =
      info.Attr<int64_t>("dtype", static_cast<int64_t>(info.InputDType(0)));
  if (dtype_number <= 0 || dtype_number >= kDTypeCount) return info.Invalid("dtype: no such type");
  const DType dtype = static_cast<DType>(dtype_number);
  const int64_t k = std::clamp(info.Attr<int64_t>("k", 0), -shape[0], shape[1]);
  auto set = [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([shape, k](KernelContext& context) {
      T* y = context.Output<T>(0);
      std::fill(y, y + shape.elements(), T(0));
      const int64_t last = std::min(shape[0], shape[1] - k);
      for (int64_t i = std::max<int64_t>(0, -k); i < last; ++i) y[i * shape[1] + i + k] = T(1);
    });
  };
  info.SetOutput(0, dtype, shape);
  const bool known = DispatchNumeric(dtype, set) || DispatchDType<bool>(dtype, set);
  return known ? Status() : info.Refuse(std::string("makes no ") + DTypeName(dtype));
}

}  // namespace

void RegisterShapeGenerate(KernelRegistry& registry) {
  registry.Add({.op_type = "Constant", .create = CreateConstant});
  registry.Add({.op_type = "ConstantOfShape", .host_inputs = {0}, .create = CreateConstantOfShape});
  registry.Add({.op_type = "Range", .host_inputs = {0, 1, 2}, .create = CreateRange});
  registry.Add({.op_type = "EyeLike", .unread_inputs = {0}, .create = CreateEyeLike});
}

}  // namespace caesura
