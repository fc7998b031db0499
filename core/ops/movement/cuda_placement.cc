// SPDX-License-Identifier: Apache-2.0
// Ops that place a box of elements among others: Pad, PadGrad and SliceGrad. The result is filled,
// then the box is copied into it. Pad in its other modes finds the source of each element.
#include "core/cuda/cuda_source.h"
#include "core/kernels/cuda/strided_copy.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"
#include "core/ops/movement/pad_spec.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/walks/slice_spec.h"

namespace caesura {
namespace {

// The box of input 0 in an output of `shape`, whose other elements are input `value`'s (-1: zeros).
Status SetPlacement(KernelInfo& info, const CudaDevicePtr& device, Shape shape,
                    const StridedBox& box, int value) {
  const DType dtype = info.InputDType(0);
  const size_t bytes = DTypeSize(dtype);
  const int64_t elements = shape.elements();
  ASSIGN_OR_RETURN(CudaStridedCopy copy, CudaStridedCopy::Make(info, device, bytes, box));
  info.SetOutput(0, dtype, std::move(shape));
  const bool covers = Shape(box.extents).elements() == elements;
  const int64_t per_piece = 16 / static_cast<int64_t>(bytes);
  const std::string source =
      CudaMacros({{"S_TYPE", CudaWord(bytes)}}) + CudaInclude("core/ops/movement/fill.cuh");
  ASSIGN_OR_RETURN(const CudaKernel fill,
                   CudaKernel::Make(device, source, "fill",
                                    GridOver(*device, (elements + per_piece - 1) / per_piece)));
  info.SetCompute([=, copy = std::move(copy)](KernelContext& context) -> Status {
    void* y = context.Output<void>(0);
    if (!covers) {
      const bool aligned = reinterpret_cast<uintptr_t>(y) % 16 == 0;
      const void* with = value < 0 ? nullptr : context.Input<void>(value);
      RETURN_IF_ERROR(fill.Launch(y, with, aligned ? elements / per_piece : 0, elements));
    }
    return copy.Run(context.Input<void>(0), y);
  });
  return {};
}

Status CreateOtherPad(KernelInfo& info, const CudaDevicePtr& device, const std::string& mode,
                      const PadAmounts& amounts) {
  const char* outside = mode == "reflect" ? "Reflect"
                        : mode == "wrap"  ? "Wrap"
                        : mode == "edge"  ? "Edge"
                                          : nullptr;
  if (outside == nullptr)
    return info.Invalid("mode: expected constant, reflect, edge or wrap, got " + mode);
  struct Axis {  // as in pad.cuh
    int64_t extent, from, count, first, stride;
  };
  const Shape& shape = info.InputShape(0);
  const StridedBox box = PadBox(shape, amounts);
  std::vector<Axis> axes;
  for (int a = 0; a < shape.rank(); ++a) {
    const int64_t extent = amounts.padded[a], before = amounts.before[a];
    if (box.extents[a] == 0 && extent > 0)
      return info.Invalid("axis " + std::to_string(a) + " has no element to pad from");
    axes.push_back({extent, -std::max<int64_t>(0, before), box.extents[a],
                    std::max<int64_t>(0, -before), box.src_strides[a]});
  }
  if (axes.empty()) return SetPlacement(info, device, amounts.padded, box, -1);
  const int64_t n = amounts.padded.elements();
  info.SetOutput(0, info.InputDType(0), amounts.padded);
  if (n == 0) {
    info.SetCompute([](KernelContext&) {});
    return {};
  }
  const std::string source = CudaMacros({{"S_TYPE", CudaWord(DTypeSize(info.InputDType(0)))},
                                         {"RANK", std::to_string(axes.size())},
                                         {"OUTSIDE", outside}}) +
                             CudaInclude("core/ops/movement/pad.cuh");
  ASSIGN_OR_RETURN(const CudaKernel pad,
                   CudaKernel::Make(device, source, "pad", GridOver(*device, n)));
  info.SetCompute([=, axes = std::move(axes)](KernelContext& context) {
    CudaArguments arguments;
    arguments.AddPointer(context.Input<void>(0));
    arguments.AddPointer(context.Output<void>(0));
    arguments.Add(&n);
    arguments.Add(axes.data());
    return pad.LaunchWith(arguments.addresses());
  });
  return {};
}

Status CreatePad(KernelInfo& info, const CudaDevicePtr& device) {
  const Shape& shape = info.InputShape(0);
  if (CudaWord(DTypeSize(info.InputDType(0))) == nullptr)
    return info.Refuse("elements of 16 bytes are not moved on CUDA");
  ASSIGN_OR_RETURN(const PadAmounts amounts, ReadPadAmounts(info, shape, 1, 3));
  const auto mode = info.Attr<std::string>("mode", "constant");
  if (mode != "constant") return CreateOtherPad(info, device, mode, amounts);
  if (info.HasInput(2) &&
      (info.InputDType(2) != info.InputDType(0) || info.InputShape(2).elements() != 1)) {
    return info.Invalid("constant_value: expected one " +
                        std::string(DTypeName(info.InputDType(0))) + ", got " +
                        DTypeName(info.InputDType(2)) + info.InputShape(2).ToString());
  }
  return SetPlacement(info, device, amounts.padded, PadBox(shape, amounts),
                      info.HasInput(2) ? 2 : -1);
}

Status CheckGradient(const KernelInfo& info, const Shape& expected) {
  if (info.InputShape(0) == expected) return {};
  return info.Invalid("dY: expected shape " + expected.ToString() + ", got " +
                      info.InputShape(0).ToString());
}

Status CreatePadGrad(KernelInfo& info, const CudaDevicePtr& device) {
  if (info.Attr<std::string>("mode", "constant") != "constant")
    return info.Refuse("only the gradient of constant padding has a kernel on CUDA");
  ASSIGN_OR_RETURN(const Shape shape, CheckDims(info, info.HostInts(1), info.InputDType(0)));
  ASSIGN_OR_RETURN(const PadAmounts amounts, ReadPadAmounts(info, shape, 2, 3));
  RETURN_IF_ERROR(CheckGradient(info, amounts.padded));
  return SetPlacement(info, device, shape, Reversed(PadBox(shape, amounts)), -1);
}

Status CreateSliceGrad(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const Shape shape, CheckDims(info, info.HostInts(1), info.InputDType(0)));
  ASSIGN_OR_RETURN(const SliceSpec spec, ResolveSlice(info, shape, 2));
  RETURN_IF_ERROR(CheckGradient(info, spec.shape));
  const StridedBox box{.extents = spec.shape.dims(),
                       .src_strides = spec.shape.Strides(),
                       .dst_strides = spec.strides,
                       .dst_offset = spec.offset};
  return SetPlacement(info, device, shape, box, -1);
}

}  // namespace

void RegisterCudaPlacement(KernelRegistry& registry, const CudaDevicePtr& device) {
  auto add = [&](KernelDef def, Status (*create)(KernelInfo&, const CudaDevicePtr&)) {
    def.create = [=](KernelInfo& info) { return create(info, device); };
    registry.Add(std::move(def));
  };
  add({.op_type = "Pad", .types = kFixedTypes, .host_inputs = {1, 3}}, CreatePad);
  add({.op_type = "PadGrad", .domain = kCaesuraDomain, .types = kFloatTypes, .host_inputs = {-2}},
      CreatePadGrad);
  add({.op_type = "SliceGrad", .domain = kCaesuraDomain, .types = kFloatTypes, .host_inputs = {-2}},
      CreateSliceGrad);
}

}  // namespace caesura
