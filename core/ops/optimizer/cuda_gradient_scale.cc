// SPDX-License-Identifier: Apache-2.0
// Work on gradients and statistics between backward and update: GlobalNorm, ClipScale,
// RequireFinite, InPlaceAccumulator, AccumulatedSum, Assign, Copy. Sums have one order.
#include <cmath>
#include <map>

#include "core/cuda/cuda_source.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/cuda/tensor_table.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/optimizer/update_spec.h"

namespace caesura {
namespace {

// --- GlobalNorm: a part a block, in double; then one block adds the parts up ---

struct SquaresOf {
  CudaTensorTable table;
  CudaKernel kernel;
  std::vector<int> inputs;  // by the table's tensors
  int64_t first;            // part
};

Status CreateGlobalNorm(KernelInfo& info, const CudaDevicePtr& device) {
  std::map<DType, std::vector<int>> by_dtype;
  for (int i = 0; i < info.input_count(); ++i) {
    if (!info.IsTensor(i) || !kFloatTypes.Contains(info.InputDType(i)))
      return info.Invalid("gradient " + std::to_string(i) + " must be of " +
                          kFloatTypes.ToString());
    by_dtype[info.InputDType(i)].push_back(i);
  }
  std::vector<SquaresOf> squares;
  int64_t parts = 0;
  for (const auto& [dtype, inputs] : by_dtype) {
    std::vector<int64_t> elements;
    for (int i : inputs) elements.push_back(info.InputShape(i).elements());
    const std::string source = CudaTensorTable::Macros(1) +
                               CudaMacros({{"S_TYPE", CudaStorageType(dtype)}}) +
                               CudaInclude("core/ops/optimizer/global_norm_squares.cuh");
    for (CudaTensorTable& table : CudaTensorTable::Make(elements, 1)) {
      ASSIGN_OR_RETURN(CudaKernel kernel,
                       CudaKernel::Make(device, source, "squares", table.Grid(*device)));
      const int64_t first = parts;
      parts += table.Grid(*device).blocks;
      squares.push_back({std::move(table), std::move(kernel), inputs, first});
    }
  }
  const DType dtype = by_dtype.count(DType::kFloat64) > 0 ? DType::kFloat64 : DType::kFloat32;
  info.SetOutput(0, dtype, Shape{});
  const std::string source = CudaMacros({{"N_TYPE", CudaStorageType(dtype)}}) +
                             CudaInclude("core/ops/optimizer/global_norm_root.cuh");
  ASSIGN_OR_RETURN(const CudaKernel root, CudaKernel::Make(device, source, "root", {1, 256}));
  const size_t scratch = info.BookScratch(static_cast<size_t>(parts) * sizeof(double));
  info.SetCompute(
      [squares = std::move(squares), root, parts, scratch](KernelContext& context) -> Status {
        double* sums = context.Scratch<double>(scratch);
        for (const SquaresOf& of : squares) {
          CudaTensorTable::Words table = of.table.Argument(
              [&](int tensor, int) { return context.Input<void>(of.inputs[tensor]); });
          double* to = sums + of.first;
          void* arguments[] = {table.data(), &to};
          RETURN_IF_ERROR(of.kernel.LaunchWith(arguments));
        }
        return root.Launch(static_cast<const double*>(sums), parts, context.Output<void>(0));
      });
  return {};
}

// --- scalars ---

bool IsOneNumber(const KernelInfo& info, int input) {
  return info.IsTensor(input) && info.InputShape(input).elements() == 1 &&
         DTypeSet{DType::kFloat32, DType::kFloat64}.Contains(info.InputDType(input));
}

Status CreateClipScale(KernelInfo& info, const CudaDevicePtr& device) {
  const double max_norm = WrittenNumber(info, "max_norm", INFINITY);
  const int skip_nonfinite = info.Attr<int64_t>("skip_nonfinite", 0) != 0;
  if (!(max_norm > 0)) return info.Invalid("max_norm must be positive");
  if (!IsOneNumber(info, 0) || !IsOneNumber(info, 1))
    return info.Invalid("norm and factor must be one element of float32 or float64");
  info.SetOutput(0, DType::kFloat64, Shape{});
  const std::string source = CudaMacros({{"N_TYPE", CudaStorageType(info.InputDType(0))},
                                         {"F_TYPE", CudaStorageType(info.InputDType(1))}}) +
                             CudaInclude("core/ops/optimizer/clip_scale.cuh");
  ASSIGN_OR_RETURN(const CudaKernel kernel, CudaKernel::Make(device, source, "clip_scale", {1, 1}));
  info.SetCompute([=](KernelContext& context) {
    return kernel.Launch(context.Input<void>(0), context.Input<void>(1), max_norm, skip_nonfinite,
                         context.Output<void>(0));
  });
  return {};
}

// A value that is not finite is reported by the next copy to the host; it does not stop the
// updates, which are undone then (UndoLog).
Status CreateRequireFinite(KernelInfo& info, const CudaDevicePtr& device) {
  const auto names = info.Attr<std::vector<std::string>>("names", {});
  const int count = info.input_count() - 1;
  if (static_cast<int>(names.size()) != count)
    return info.Invalid("names must name what it checks");
  std::vector<CudaKernel> kernels;
  std::vector<unsigned> errors;
  for (int i = 0; i < count; ++i) {
    if (!info.IsTensor(1 + i) || !kFloatTypes.Contains(info.InputDType(1 + i)) ||
        info.InputShape(1 + i).elements() != 1) {
      return info.Invalid("what is checked must be one element of " + kFloatTypes.ToString());
    }
    const std::string source = CudaMacros({{"S_TYPE", CudaStorageType(info.InputDType(1 + i))}}) +
                               CudaInclude("core/ops/optimizer/require_finite.cuh");
    ASSIGN_OR_RETURN(CudaKernel kernel, CudaKernel::Make(device, source, "require_finite", {1, 1}));
    kernels.push_back(std::move(kernel));
    errors.push_back(
        device->AddError(names[static_cast<size_t>(i)] + " is not finite: the step was refused"));
  }
  const size_t bytes =
      static_cast<size_t>(info.InputShape(0).elements()) * DTypeSize(info.InputDType(0));
  info.SetOutput(0, info.InputDType(0), info.InputShape(0));
  info.SetCompute([=, cell = device->error_cell()](KernelContext& context) -> Status {
    for (size_t i = 0; i < kernels.size(); ++i) {
      RETURN_IF_ERROR(kernels[i].Launch(context.Input<void>(1 + static_cast<int>(i)), cell,
                                        static_cast<unsigned>(errors[i])));
    }
    return device->CopyWithin(context.Output<void>(0), context.Input<void>(0), bytes);
  });
  return {};
}

// --- whole tensors ---

// Two tensors of one dtype and shape, the first of which is also the output.
Status CheckPair(const KernelInfo& info) {
  const bool fits = info.IsTensor(0) && info.IsTensor(1) &&
                    info.InputDType(0) == info.InputDType(1) &&
                    info.InputShape(0) == info.InputShape(1);
  return fits ? Status() : info.Invalid("its two tensors must have one dtype and shape");
}

// reset ? value : buffer + value; the output may lie on either.
Status CreateAccumulator(KernelInfo& info, const CudaDevicePtr& device) {
  RETURN_IF_ERROR(CheckPair(info));
  if (!info.IsTensor(2) || info.InputDType(2) != DType::kBool ||
      info.InputShape(2).elements() != 1) {
    return info.Invalid("reset must be one bool");
  }
  const DType dtype = info.InputDType(0);
  const int64_t n = info.InputShape(0).elements();
  info.SetOutput(0, dtype, info.InputShape(0));
  const std::string source = CudaMacros({{"S_TYPE", CudaStorageType(dtype)}}) +
                             CudaInclude("core/ops/optimizer/accumulate.cuh");
  ASSIGN_OR_RETURN(const CudaKernel kernel,
                   CudaKernel::Make(device, source, "accumulate", GridOver(*device, n)));
  info.SetCompute([=](KernelContext& context) -> Status {
    if (n == 0) return {};
    return kernel.Launch(context.Input<void>(0), context.Input<void>(1), context.Input<void>(2),
                         context.Output<void>(0), n);
  });
  return {};
}

// The output becomes input `from`.
Status SetCopy(KernelInfo& info, const CudaDevicePtr& device, int from) {
  const size_t bytes =
      static_cast<size_t>(info.InputShape(0).elements()) * DTypeSize(info.InputDType(0));
  info.SetOutput(0, info.InputDType(0), info.InputShape(0));
  info.SetCompute([=](KernelContext& context) -> Status {
    const void* value = context.Input<void>(from);
    void* out = context.Output<void>(0);
    return out == value ? Status() : device->CopyWithin(out, value, bytes);
  });
  return {};
}

Status CreateAssign(KernelInfo& info, const CudaDevicePtr& device) {
  RETURN_IF_ERROR(CheckPair(info));
  return SetCopy(info, device, 1);
}

Status CreateCopy(KernelInfo& info, const CudaDevicePtr& device) {
  return SetCopy(info, device, 0);
}

}  // namespace

void RegisterCudaGradientScale(KernelRegistry& registry, const CudaDevicePtr& device) {
  const auto add = [&](const char* op, DTypeSet types, std::vector<Alias> aliases, auto create,
                       std::vector<int> unread_inputs = {}) {
    registry.Add({.op_type = op,
                  .domain = kCaesuraDomain,
                  .types = types,
                  .unread_inputs = std::move(unread_inputs),
                  .aliases = std::move(aliases),
                  .create = [=](KernelInfo& info) { return create(info, device); }});
  };
  add("GlobalNorm", kFloatTypes, {}, CreateGlobalNorm);
  add("ClipScale", kFloatTypes, {}, CreateClipScale);
  add("RequireFinite", kFixedTypes, {}, CreateRequireFinite);
  add("InPlaceAccumulator", kFloatTypes, {InPlace(0, 0)}, CreateAccumulator);
  add("AccumulatedSum", kFloatTypes, {MayReuse(1, 0)}, CreateAccumulator);
  add("Assign", kFixedTypes, {InPlace(0, 0)}, CreateAssign, {2});
  add("Copy", kFixedTypes, {}, CreateCopy);
}

}  // namespace caesura
