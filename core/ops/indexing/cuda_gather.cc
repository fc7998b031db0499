// SPDX-License-Identifier: Apache-2.0
// Gather, GatherElements, and GatherGrad (ai.caesura). The gradient first sorts the indices so that
// equal ones keep their order; then threads add the slices of one row in that order, each thread in
// columns of its own. Sums of halves are kept in float32 until they are whole.
#include <algorithm>
#include <bit>
#include <limits>

#include "core/cuda/cuda_source.h"
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/cuda/strided_walk.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/factory_checks.h"

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

bool IsWideAligned(const void* a, const void* b) {
  return (reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b)) % 16 == 0;
}

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
  // Elements of 16 bytes, where slices consist of such pieces.
  const int64_t of_piece = 16 / static_cast<int64_t>(DTypeSize(info.InputDType(0)));
  const int64_t wide = at.inner % of_piece == 0 ? of_piece : 1;
  const std::string source = CudaMacros({{"S_TYPE", CudaStorageType(info.InputDType(0))},
                                         {"I_TYPE", CudaStorageType(info.InputDType(1))}}) +
                             CudaInclude("core/ops/indexing/gather.cuh");
  ASSIGN_OR_RETURN(const CudaKernel by_element,
                   CudaKernel::Make(device, source, "gather", GridOver(*device, elements)));
  ASSIGN_OR_RETURN(const CudaKernel by_piece, CudaKernel::Make(device, source, "gather_wide",
                                                               GridOver(*device, elements / wide)));
  info.SetCompute([=, error = device->error_cell(),
                   number = device->AddError(OutOfRange(info, at.dim))](KernelContext& context) {
    const void* x = context.Input<void>(0);
    void* y = context.Output<void>(0);
    const bool pieces = wide > 1 && IsWideAligned(x, y);
    const int64_t of_launch = pieces ? wide : 1;
    return (pieces ? by_piece : by_element)
        .Launch(x, context.Input<void>(1), y, elements / of_launch, at.dim, at.inner / of_launch,
                at.count, error, number);
  });
  return {};
}

// --- GatherElements ---

Status CreateGatherElements(KernelInfo& info, const CudaDevicePtr& device) {
  RETURN_IF_ERROR(CheckIndices(info));
  const Shape &data = info.InputShape(0), indices = info.InputShape(1);
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", 0), data.rank()));
  bool fits = indices.rank() == data.rank();
  for (int a = 0; fits && a < data.rank(); ++a) fits = a == axis || indices[a] <= data[a];
  if (!fits) return info.Invalid("indices: shape " + indices.ToString() + " in " + data.ToString());
  const int64_t n = indices.elements(), dim = data[axis];
  info.SetOutput(0, info.InputDType(0), indices);
  if (n == 0) {
    info.SetCompute([](KernelContext&) {});
    return {};
  }
  if (dim == 0) return info.Refuse("gathers from nothing");
  std::vector<int64_t> strides = data.Strides();
  const int64_t step = std::exchange(strides[axis], 0);
  const StridedWalk walk = StridedWalk::Make(indices.dims(), {strides});
  const std::string source = CudaMacros({{"S_TYPE", CudaStorageType(info.InputDType(0))},
                                         {"I_TYPE", CudaStorageType(info.InputDType(1))},
                                         {"WALK_NUMBERS", std::to_string(walk.Numbers().size())},
                                         {"OFFSETS", walk.Offsets()}}) +
                             CudaInclude("core/ops/indexing/gather_elements.cuh");
  ASSIGN_OR_RETURN(const CudaKernel kernel,
                   CudaKernel::Make(device, source, "gather_elements", GridOver(*device, n)));
  info.SetCompute([=, numbers = walk.Numbers(), error = device->error_cell(),
                   number = device->AddError(OutOfRange(info, dim))](KernelContext& context) {
    CudaArguments arguments;
    arguments.AddPointer(context.Input<void>(0));
    arguments.AddPointer(context.Input<void>(1));
    arguments.AddPointer(context.Output<void>(0));
    for (const int64_t* value : {&n, &dim, &step}) arguments.Add(value);
    arguments.AddPointer(error);
    arguments.Add(&number);
    arguments.Add(numbers.data());
    return kernel.LaunchWith(arguments.addresses());
  });
  return {};
}

// --- GatherGrad ---

// gather_gradient.cuh sorts by classes of rows, a warp a class, and keeps the numbers of the rows
// of a small class in shared memory.
constexpr int kMostClassBits = 10;
constexpr int64_t kSortWarps = 8;
constexpr int64_t kNearBytes = 1024;

// One of the last two kernels, with the blocks that it takes.
struct SliceSums {
  CudaKernel kernel;
  int64_t tiles;

  static Result<SliceSums> Make(const CudaDevicePtr& device, const std::string& source,
                                const char* name, const GatherShape& at, int64_t per_thread) {
    const int64_t threads_wanted = at.outer * at.inner / per_thread;
    const int64_t threads = std::clamp<int64_t>((threads_wanted + 31) / 32 * 32, 32, 256);
    const int64_t tiles = (threads_wanted + threads - 1) / threads;
    // Most blocks find that their place is not the first of its row.
    const int64_t blocks = std::clamp<int64_t>(at.count * tiles, 1, int64_t{1} << 16);
    ASSIGN_OR_RETURN(CudaKernel kernel, CudaKernel::Make(device, source, name,
                                                         {static_cast<unsigned>(blocks),
                                                          static_cast<unsigned>(threads)}));
    return SliceSums{std::move(kernel), tiles};
  }
};

Status CreateGatherGrad(KernelInfo& info, const CudaDevicePtr& device) {
  RETURN_IF_ERROR(CheckIndices(info));
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(Shape data, CheckDims(info, info.HostInts(2), dtype));
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", 0), data.rank()));
  const GatherShape at{data.Elements(0, axis), data[axis], data.Elements(axis + 1, data.rank()),
                       info.InputShape(1).elements()};
  if (info.InputShape(0).elements() != at.outer * at.count * at.inner)
    return info.Invalid("dY: unexpected shape " + info.InputShape(0).ToString());
  if (info.HasInput(3) && (info.InputShape(3) != data || info.InputDType(3) != dtype))
    return info.Invalid("base: unexpected shape " + info.InputShape(3).ToString());
  const int64_t elements = data.elements();
  const size_t bytes = static_cast<size_t>(elements) * DTypeSize(dtype);
  info.SetOutput(0, dtype, std::move(data));
  if (elements == 0) {
    info.SetCompute([](KernelContext&) {});
    return {};
  }
  const bool small = std::max(at.dim, at.count) < std::numeric_limits<int32_t>::max();
  const size_t number_bytes = small ? sizeof(int32_t) : sizeof(int64_t);
  const int class_bits =
      std::min<int>(kMostClassBits, std::bit_width(static_cast<uint64_t>(at.dim - 1)));
  const int64_t classes = int64_t{1} << class_bits, warps = std::min(classes, kSortWarps);
  const size_t places = info.BookScratch(static_cast<size_t>(at.count) * 2 * number_bytes);
  const size_t class_bytes = static_cast<size_t>((at.dim + classes - 1) / classes) * number_bytes;
  const size_t numbers = info.BookScratch(class_bytes <= kNearBytes ? 0 : class_bytes * classes);
  const std::string source = CudaMacros({{"S_TYPE", CudaStorageType(dtype)},
                                         {"C_TYPE", CudaComputeType(dtype)},
                                         {"I_TYPE", CudaStorageType(info.InputDType(1))},
                                         {"R_TYPE", small ? "int" : "i64"},
                                         {"SORT_WARPS", std::to_string(kSortWarps)},
                                         {"NEAR_BYTES", std::to_string(kNearBytes)}}) +
                             CudaInclude("core/ops/indexing/gather_gradient.cuh");
  const int64_t wide = 16 / static_cast<int64_t>(DTypeSize(dtype));
  ASSIGN_OR_RETURN(
      const CudaKernel zero,
      CudaKernel::Make(device, source, "zero", GridOver(*device, (elements + wide - 1) / wide)));
  ASSIGN_OR_RETURN(const CudaKernel sort, CudaKernel::Make(device, source, "sort_indices",
                                                           {static_cast<unsigned>(classes / warps),
                                                            static_cast<unsigned>(32 * warps)}));
  ASSIGN_OR_RETURN(const SliceSums by_element,
                   SliceSums::Make(device, source, "add_slices", at, 1));
  ASSIGN_OR_RETURN(const SliceSums by_piece,
                   SliceSums::Make(device, source, "add_slices_wide", at, wide));
  info.SetCompute(
      [=, has_base = info.HasInput(3), error = device->error_cell(),
       number = device->AddError(OutOfRange(info, at.dim))](KernelContext& context) -> Status {
        const void* dy = context.Input<void>(0);
        const void* base = has_base ? context.Input<void>(3) : nullptr;
        void* dx = context.Output<void>(0);
        if (base == nullptr) {
          const int64_t pieces = IsWideAligned(dx, dx) ? elements / wide : 0;
          RETURN_IF_ERROR(zero.Launch(dx, pieces, elements));
        } else if (base != dx) {
          RETURN_IF_ERROR(device->CopyWithin(dx, base, bytes));
        }
        if (at.count == 0) return {};
        void* sorted = context.Scratch<void>(places);
        RETURN_IF_ERROR(sort.Launch(context.Input<void>(1), sorted, context.Scratch<void>(numbers),
                                    at.count, at.dim, class_bits, error, number));
        const bool pieces = at.inner % wide == 0 && IsWideAligned(dy, dx);
        const SliceSums& sums = pieces ? by_piece : by_element;
        return sums.kernel.Launch(dy, sorted, dx, at.count, at.dim, at.inner, at.outer * at.inner,
                                  sums.tiles);
      });
  return {};
}

}  // namespace

void RegisterCudaGather(KernelRegistry& registry, const CudaDevicePtr& device) {
  registry.Add({.op_type = "Gather", .types = kCudaTypes, .create = [device](KernelInfo& info) {
                  return CreateGather(info, device);
                }});
  registry.Add(
      {.op_type = "GatherElements", .types = kCudaTypes, .create = [device](KernelInfo& info) {
         return CreateGatherElements(info, device);
       }});
  registry.Add({.op_type = "GatherGrad",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .host_inputs = {2},
                .aliases = {MayReuse(3, 0)},
                .create = [device](KernelInfo& info) { return CreateGatherGrad(info, device); }});
}

}  // namespace caesura
