// SPDX-License-Identifier: Apache-2.0
// Gather, and GatherGrad (ai.caesura), whose sums go through the indices in their order: one thread
// owns a column of the data, so that slices that meet are added one after the other. Sums of halves
// are kept in float32 until they are whole.
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/cuda/kernel_list.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/factory_checks.h"

namespace caesura {
namespace {

// Data [outer, dim, inner], `count` indices.
struct GatherShape {
  int64_t outer, dim, inner, count;
};

Status CheckIndices(const KernelInfo& info) {
  return CheckDType(info, 1, {DType::kInt32, DType::kInt64});
}

std::string OutOfRange(const KernelInfo& info, int64_t dim) {
  return info.node().Label() + " an index is outside [-" + std::to_string(dim) + ", " +
         std::to_string(dim) + ")";
}

// Statements that make `index` out of indices[j], or report it.
constexpr char kIndex[] =
    "i64 index = Load(indices + j);\n"
    "if (index < 0) index += dim;\n"
    "if (index < 0 || index >= dim) { atomicCAS(error, 0u, number); index = 0; }\n";

Status CreateGather(KernelInfo& info, const CudaDevicePtr& device) {
  RETURN_IF_ERROR(CheckIndices(info));
  const Shape &data = info.InputShape(0), &indices = info.InputShape(1);
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", 0), data.rank()));
  const GatherShape at{data.Elements(0, axis), data[axis], data.Elements(axis + 1, data.rank()),
                       indices.elements()};
  std::vector<int64_t> dims(data.begin(), data.begin() + axis);
  dims.insert(dims.end(), indices.begin(), indices.end());
  dims.insert(dims.end(), data.begin() + axis + 1, data.end());
  ASSIGN_OR_RETURN(Shape output, CheckDims(info, std::move(dims), info.InputDType(0)));
  const int64_t elements = output.elements();
  info.SetOutput(0, info.InputDType(0), std::move(output));
  if (elements == 0) {
    info.SetCompute([](KernelContext&) {});
    return {};
  }
  if (at.dim == 0) return info.Refuse("gathers from nothing");
  const std::string type = CudaStorageType(info.InputDType(0));
  const std::string source =
      "extern \"C\" __global__ void gather(const " + type + "* x, const " +
      CudaStorageType(info.InputDType(1)) + "* indices, " + type +
      "* y, i64 n, i64 dim, i64 inner, i64 count, unsigned* error, unsigned number) {\n"
      "for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n;"
      " i += (i64)gridDim.x * blockDim.x) {\n"
      "const i64 column = i % inner, j = i / inner % count, o = i / inner / count;\n" +
      kIndex + "y[i] = x[(o * dim + index) * inner + column];\n}\n}\n";
  ASSIGN_OR_RETURN(const CudaKernel kernel,
                   CudaKernel::Make(device, source, "gather", GridOver(*device, elements)));
  info.SetCompute([kernel, at, elements, error = device->error_cell(),
                   number = device->AddError(OutOfRange(info, at.dim))](KernelContext& context) {
    return kernel.Launch(context.Input<void>(0), context.Input<void>(1), context.Output<void>(0),
                         elements, at.dim, at.inner, at.count, error, number);
  });
  return {};
}

Status CreateGatherGrad(KernelInfo& info, const CudaDevicePtr& device) {
  RETURN_IF_ERROR(CheckIndices(info));
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(Shape data, CheckDims(info, info.HostInts(2), dtype));
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", 0), data.rank()));
  const GatherShape at{data.Elements(0, axis), data[axis], data.Elements(axis + 1, data.rank()),
                       info.InputShape(1).elements()};
  if (info.InputShape(0).elements() != at.outer * at.count * at.inner)
    return info.Invalid("dY: unexpected shape " + info.InputShape(0).ToString());
  const bool has_base = info.HasInput(3);
  const int64_t columns = at.outer * at.inner, elements = data.elements();
  const bool half = IsHalf(dtype);
  const size_t scratch = info.BookScratch(half ? elements * sizeof(float) : 0);
  info.SetOutput(0, dtype, std::move(data));
  if (elements == 0) {
    info.SetCompute([](KernelContext&) {});
    return {};
  }
  const std::string type = CudaStorageType(dtype), sum = CudaComputeType(dtype);
  const std::string source =
      "extern \"C\" __global__ void gather_grad(const " + type + "* dy, const " +
      CudaStorageType(info.InputDType(1)) + "* indices, const " + type + "* base, " + sum +
      "* sums, " + type +
      "* dx, i64 columns, i64 dim, i64 inner, i64 count, unsigned* error, unsigned number) {\n"
      "for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < columns;"
      " i += (i64)gridDim.x * blockDim.x) {\n"
      "const i64 column = i % inner, o = i / inner;\n"
      "for (i64 d = 0; d < dim; ++d) {\nconst i64 to = (o * dim + d) * inner + column;\n"
      "sums[to] = base ? Load(base + to) : 0;\n}\n"
      "for (i64 j = 0; j < count; ++j) {\n" +
      kIndex +
      "sums[(o * dim + index) * inner + column] += "
      "Load(dy + (o * count + j) * inner + column);\n}\n" +
      (half ? "for (i64 d = 0; d < dim; ++d) {\nconst i64 to = (o * dim + d) * inner + column;\n"
              "Store(dx + to, sums[to]);\n}\n"
            : "") +
      "}\n}\n";
  ASSIGN_OR_RETURN(const CudaKernel kernel,
                   CudaKernel::Make(device, source, "gather_grad", GridOver(*device, columns)));
  info.SetCompute([=, error = device->error_cell(),
                   number = device->AddError(OutOfRange(info, at.dim))](KernelContext& context) {
    void* dx = context.Output<void>(0);
    return kernel.Launch(context.Input<void>(0), context.Input<void>(1),
                         has_base ? context.Input<void>(3) : nullptr,
                         half ? context.Scratch<void>(scratch) : dx, dx, columns, at.dim, at.inner,
                         at.count, error, number);
  });
  return {};
}

}  // namespace

void RegisterCudaGather(KernelRegistry& registry, const CudaDevicePtr& device) {
  registry.Add({.op_type = "Gather", .types = kCudaTypes, .create = [device](KernelInfo& info) {
                  return CreateGather(info, device);
                }});
  registry.Add({.op_type = "GatherGrad",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .host_inputs = {2},
                .aliases = {MayReuse(3, 0)},
                .create = [device](KernelInfo& info) { return CreateGatherGrad(info, device); }});
}

}  // namespace caesura
