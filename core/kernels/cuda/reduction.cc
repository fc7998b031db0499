// SPDX-License-Identifier: Apache-2.0
// Reductions over any axes, and SumTo (ai.caesura): a block an output, whose threads take the
// elements under it in turns. The order of a sum depends on the shape only.
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/cuda/kernel_list.h"
#include "core/kernels/cuda/row_source.h"
#include "core/kernels/cuda/strided_walk.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/factory_checks.h"
#include "core/kernels/spec/reduction_plan.h"

namespace caesura {
namespace {

// The elements `v` meet by `op`, from `first` on; the result is made of `all`. n is their number.
struct Merge {
  const char* op_type;
  const char* op;
  const char* first;
  const char* element;
  const char* result;
};

constexpr Merge kMerges[] = {
    {"ReduceSum", "RowSum", "0", "v", "all"},
    {"SumTo", "RowSum", "0", "v", "all"},
    {"ReduceMean", "RowSum", "0", "v", "all / n"},
    {"ReduceSumSquare", "RowSum", "0", "v * v", "all"},
    {"ReduceL1", "RowSum", "0", "v < 0 ? -v : v", "all"},
    {"ReduceL2", "RowSum", "0", "v * v", "sqrt(all)"},
    {"ReduceMax", "RowMax", "-INFINITE", "v", "all"},
    {"ReduceMin", "RowMin", "INFINITE", "v", "all"},
};

Status SetReduction(KernelInfo& info, const CudaDevicePtr& device, const Merge& merge,
                    const std::vector<bool>& reduced, Shape output) {
  const Shape& shape = info.InputShape(0);
  const DType dtype = info.InputDType(0);
  const auto out_dtype =
      static_cast<DType>(info.Attr<int64_t>("dtype", static_cast<int64_t>(dtype)));
  if (!kFloatTypes.Contains(out_dtype)) return info.Refuse("has no CUDA source for these types");
  std::vector<int64_t> kept_dims, kept_strides, dims, strides;
  const std::vector<int64_t> all = shape.Strides();
  for (int a = 0; a < shape.rank(); ++a) {
    (reduced[a] ? dims : kept_dims).push_back(shape[a]);
    (reduced[a] ? strides : kept_strides).push_back(all[a]);
  }
  const StridedWalk kept = StridedWalk::Make(kept_dims, {kept_strides});
  const StridedWalk under = StridedWalk::Make(dims, {strides});
  const std::string type = CudaComputeType(dtype);
  const std::string source = CudaRowPrelude() + kept.Struct("Kept") + under.Struct("Under") +
                             "extern \"C\" __global__ void reduce(const " + CudaStorageType(dtype) +
                             "* x, " + CudaStorageType(out_dtype) +
                             "* y, i64 outputs, i64 n, Kept kept, Under under) {\n"
                             "for (i64 i = blockIdx.x; i < outputs; i += gridDim.x) {\n" +
                             kept.Offsets("i", "kept", "at") + type + " part = " + merge.first +
                             ";\nfor (i64 j = threadIdx.x; j < n; j += blockDim.x) {\n" +
                             under.Offsets("j", "under", "off") + "const " + type +
                             " v = Load(x + at0 + off0);\npart = " + merge.op + "()(part, (" +
                             type + ")(" + merge.element + "));\n}\nconst " + type +
                             " all = RowReduce(part, " + merge.op +
                             "());\nif (threadIdx.x == 0) Store(y + i, (" +
                             CudaComputeType(out_dtype) + ")(" + merge.result + "));\n}\n}\n";
  const CudaGrid grid{
      static_cast<unsigned>(
          std::clamp<int64_t>(kept.elements, 1, int64_t{16} * device->multiprocessors())),
      static_cast<unsigned>(std::clamp<int64_t>((under.elements + 31) / 32 * 32, 32, 256))};
  ASSIGN_OR_RETURN(const CudaKernel kernel, CudaKernel::Make(device, source, "reduce", grid));
  info.SetOutput(0, out_dtype, std::move(output));
  if (kept.elements == 0) {
    info.SetCompute([](KernelContext&) {});
    return {};
  }
  info.SetCompute([kernel, outputs = kept.elements, n = under.elements, kept = kept.Numbers(),
                   under = under.Numbers()](KernelContext& context) {
    CudaArguments arguments;
    arguments.AddPointer(context.Input<void>(0));
    arguments.AddPointer(context.Output<void>(0));
    arguments.Add(&outputs);
    arguments.Add(&n);
    arguments.Add(kept.data());
    arguments.Add(under.data());
    return kernel.LaunchWith(arguments.addresses());
  });
  return {};
}

Status CreateReduction(KernelInfo& info, const CudaDevicePtr& device, const Merge& merge) {
  const Shape& shape = info.InputShape(0);
  ASSIGN_OR_RETURN(const std::vector<bool> reduced, ReducedAxes(info, shape));
  return SetReduction(info, device, merge, reduced,
                      ReducedShape(shape, reduced, info.Attr<int64_t>("keepdims", 1) != 0));
}

Status CreateSumTo(KernelInfo& info, const CudaDevicePtr& device, const Merge& merge) {
  const Shape& shape = info.InputShape(0);
  ASSIGN_OR_RETURN(Shape target, CheckDims(info, info.HostInts(1), info.InputDType(0)));
  const int lead = shape.rank() - target.rank();
  std::vector<bool> reduced(shape.rank(), true);
  for (int a = 0; a < target.rank(); ++a) {
    if (lead < 0 || (target[a] != 1 && target[a] != shape[lead + a]))
      return info.Invalid("shape: " + target.ToString() + " does not broadcast to " +
                          shape.ToString());
    reduced[lead + a] = target[a] != shape[lead + a];
  }
  return SetReduction(info, device, merge, reduced, std::move(target));
}

}  // namespace

void RegisterCudaReductions(KernelRegistry& registry, const CudaDevicePtr& device) {
  for (const Merge& merge : kMerges) {
    const bool sum_to = std::string(merge.op_type) == "SumTo";
    registry.Add({.op_type = merge.op_type,
                  .domain = sum_to ? kCaesuraDomain : "",
                  .types = kFloatTypes,
                  .host_inputs = {1},
                  .create = [=](KernelInfo& info) {
                    return sum_to ? CreateSumTo(info, device, merge)
                                  : CreateReduction(info, device, merge);
                  }});
  }
}

}  // namespace caesura
