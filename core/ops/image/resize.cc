// SPDX-License-Identifier: Apache-2.0
// Resize and Upsample: to the nearest by index tables, otherwise one weighted pass an axis.
#include "core/base/status_macros.h"
#include "core/ops/image/resize_spec.h"
#include "core/kernels/walks/tap_chain.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/walks/mapped_copy.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

Status SetNearest(KernelInfo& info, const ResizeSpec& plan) {
  const DType dtype = info.InputDType(0);
  const Shape& shape = info.InputShape(0);
  std::vector<AxisMap> maps;
  for (int a = 0; a < shape.rank(); ++a) {
    const AxisTaps& taps = plan.axes[a];
    AxisMap map = taps.index;
    for (int64_t i = 0; taps.taps == 0 && i < taps.out; ++i) map.push_back(i);
    for (size_t i = 0; i < taps.outside.size(); ++i) {
      if (taps.outside[i]) map[i] = kFillIndex;
    }
    maps.push_back(std::move(map));
  }
  ASSIGN_OR_RETURN(Tensor fill, Tensor::Allocate(dtype, Shape{}));
  DispatchNumeric(dtype,
                  [&](auto tag) {
                    using T = typename decltype(tag)::type;
                    *fill.data<T>() = FromSum<T>(plan.fill);
                  }) ||
      DispatchDType<bool>(dtype, [&](auto) { *fill.data<bool>() = plan.fill != 0; });
  const bool has_fill = DTypeSet(kNumericTypes | DTypeSet{DType::kBool}).Contains(dtype);
  MappedCopy copy = MappedCopy::Make(info, dtype, shape, std::move(maps));
  info.SetCompute([copy = std::move(copy), fill, has_fill](KernelContext& context) {
    copy.Run(context.Input<void>(0), context.Output<void>(0), has_fill ? fill.raw() : nullptr);
  });
  return {};
}

template <typename T, typename A>
void SetPasses(KernelInfo& info, const ResizeSpec& plan) {
  const TapChain<T, A> chain(info, info.InputShape(0), plan.axes, false, plan.fill);
  info.SetCompute([chain](KernelContext& context) { chain.Run(context); });
}

Status CreateResizeFrom(KernelInfo& info, ResizeInputs inputs) {
  ASSIGN_OR_RETURN(const ResizeSpec plan, MakeResizePlan(info, info.InputShape(0), inputs));
  const DType dtype = info.InputDType(0);
  info.SetOutput(0, dtype, plan.out);
  if (plan.nearest) return SetNearest(info, plan);
  const bool known =
      DispatchDType<float, Float16, BFloat16>(
          dtype, [&](auto tag) { SetPasses<typename decltype(tag)::type, float>(info, plan); }) ||
      DispatchNumeric(
          dtype, [&](auto tag) { SetPasses<typename decltype(tag)::type, double>(info, plan); });
  return known ? Status() : info.Refuse(std::string("does not interpolate ") + DTypeName(dtype));
}

Status CreateResize(KernelInfo& info) {
  const int version = info.node().since_version();
  return CreateResizeFrom(
      info, version > 0 && version < 11 ? ResizeInputs{-1, 1, -1} : ResizeInputs{1, 2, 3});
}

Status CreateUpsample(KernelInfo& info) {
  return CreateResizeFrom(info, ResizeInputs{-1, info.HasInput(1) ? 1 : -1, -1});
}

}  // namespace

void RegisterResize(KernelRegistry& registry) {
  registry.Add({.op_type = "Resize", .host_inputs = {-2}, .create = CreateResize});  // all but X
  registry.Add({.op_type = "Upsample", .host_inputs = {1}, .create = CreateUpsample});
}

}  // namespace caesura
