// SPDX-License-Identifier: Apache-2.0
// Reductions over any axes, global pools, and SumTo (ai.caesura). Where the elements under an
// output lie side by side, a team of threads takes them in turns; where the outputs' do, each
// thread has outputs of its own. Elements under few outputs are in parts, which a second kernel
// merges. The order of a sum depends on the shape and the device only.
#include "core/cuda/cuda_source.h"
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/cuda/strided_walk.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/windows/pool_geometry.h"
#include "core/ops/reduction/reduction_spec.h"

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
    {"GlobalAveragePool", "RowSum", "0", "v", "all / n"},
    {"GlobalMaxPool", "RowMax", "-INFINITE", "v", "all"},
};

int64_t DividedUp(int64_t n, int64_t by) { return (n + by - 1) / by; }

// True where pieces of so many elements along the walk's last dim are whole in each of its rows.
bool HasPieces(const StridedWalk& walk, int64_t wide) {
  if (walk.dims.back() % wide != 0 || walk.strides[0].back() != 1) return false;
  return std::all_of(walk.strides[0].begin(), walk.strides[0].end() - 1,
                     [&](int64_t stride) { return stride % wide == 0; });
}

bool AreMultiples(const StridedWalk& walk, int64_t wide) {
  return walk.elements == 1 || std::all_of(walk.strides[0].begin(), walk.strides[0].end(),
                                           [&](int64_t stride) { return stride % wide == 0; });
}

// The way in which elements are spread over threads.
struct Spread {
  static constexpr int64_t kThreads = 256;
  bool columns;
  int64_t wide = 1;     // elements of one load
  int64_t team = 32;    // rows: threads an output
  int64_t sharers = 1;  // columns: threads an output
  int64_t parts = 1, part_n;
  int64_t blocks;

  Spread(const CudaDevice& device, const StridedWalk& kept, const StridedWalk& under,
         int64_t of_piece) {
    const int64_t chips = device.multiprocessors(), outputs = kept.elements, n = under.elements;
    // Fewer columns leave most of what is loaded for other threads.
    columns = kept.dims.back() >= 8 && kept.strides[0].back() == 1;
    const StridedWalk &along = columns ? kept : under, &other = columns ? under : kept;
    if (HasPieces(along, of_piece) && AreMultiples(other, of_piece)) wide = of_piece;
    int64_t tiles, least;  // blocks without parts; the fewest elements of a part
    if (columns) {
      sharers = n >= 16 && outputs / wide < 512 * chips ? 8 : 1;
      tiles = DividedUp(outputs / wide, kThreads / sharers);
      least = 8 * sharers;
    } else {
      const int64_t pieces = DividedUp(n, wide);
      if (pieces > 256 || (pieces > 32 && outputs < 8 * chips)) team = kThreads;
      tiles = DividedUp(outputs, kThreads / team);
      least = 4 * team * wide;
    }
    if (tiles < 2 * chips && tiles > 0)
      parts = std::clamp<int64_t>(4 * chips / tiles, 1, std::max<int64_t>(n / least, 1));
    part_n = std::max<int64_t>(DividedUp(DividedUp(n, parts), wide) * wide, wide);
    parts = std::max<int64_t>(DividedUp(n, part_n), 1);
    blocks = std::clamp<int64_t>(tiles * parts, 1, 32 * chips);
  }
};

std::string ReduceSource(const Merge& merge, const Spread& spread, const StridedWalk& kept,
                         const StridedWalk& under, DType dtype, DType out_dtype) {
  return CudaMacros({{"S_TYPE", CudaStorageType(dtype)},
                     {"C_TYPE", CudaComputeType(dtype)},
                     {"D_TYPE", CudaStorageType(out_dtype)},
                     {"O_TYPE", CudaComputeType(out_dtype)},
                     {"OP", merge.op},
                     {"FIRST", merge.first},
                     {"ELEMENT", merge.element},
                     {"RESULT", merge.result},
                     {"COLUMNS", std::to_string(spread.columns)},
                     {"WIDE", std::to_string(spread.wide)},
                     {"TEAM", std::to_string(spread.team)},
                     {"SHARERS", std::to_string(spread.sharers)},
                     {"KEPT_NUMBERS", std::to_string(kept.Numbers().size())},
                     {"UNDER_NUMBERS", std::to_string(under.Numbers().size())},
                     {"KEPT_OFFSETS", kept.Offsets("i", "kept", "at")},
                     {"UNDER_OFFSETS", under.Offsets("j", "under", "off")}}) +
         CudaInclude("core/ops/reduction/reduction.cuh");
}

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
  info.SetOutput(0, out_dtype, std::move(output));
  if (kept.elements == 0) {
    info.SetCompute([](KernelContext&) {});
    return {};
  }
  const Spread spread(*device, kept, under, 16 / static_cast<int64_t>(DTypeSize(dtype)));
  const std::string source = ReduceSource(merge, spread, kept, under, dtype, out_dtype);
  ASSIGN_OR_RETURN(const CudaKernel reduce, CudaKernel::Make(device, source, "reduce",
                                                             {static_cast<unsigned>(spread.blocks),
                                                              unsigned{Spread::kThreads}}));
  const int64_t mergers = kept.elements * (spread.columns ? 1 : 32);
  ASSIGN_OR_RETURN(const CudaKernel merge_parts,
                   CudaKernel::Make(device, source, "merge_parts", GridOver(*device, mergers)));
  const size_t part_bytes = dtype == DType::kFloat64 ? sizeof(double) : sizeof(float);
  const size_t scratch = info.BookScratch(
      spread.parts == 1 ? 0 : static_cast<size_t>(spread.parts * kept.elements) * part_bytes);
  info.SetCompute([=, outputs = kept.elements, n = under.elements, part_count = spread.parts,
                   part_n = spread.part_n, kept = kept.Numbers(),
                   under = under.Numbers()](KernelContext& context) -> Status {
    const void* x = context.Input<void>(0);
    void* y = context.Output<void>(0);
    const void* parts = part_count == 1 ? nullptr : context.Scratch<void>(scratch);
    const int aligned = (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y)) % 16 == 0;
    CudaArguments arguments;
    for (const void* pointer : {x, static_cast<const void*>(y), parts})
      arguments.AddPointer(pointer);
    for (const int64_t* number : {&outputs, &n, &part_count, &part_n}) arguments.Add(number);
    arguments.Add(&aligned);
    arguments.Add(kept.data());
    arguments.Add(under.data());
    RETURN_IF_ERROR(reduce.LaunchWith(arguments.addresses()));
    if (part_count == 1) return {};
    return merge_parts.Launch(parts, y, outputs, n, part_count);
  });
  return {};
}

Status CreateReduction(KernelInfo& info, const CudaDevicePtr& device, const Merge& merge) {
  const Shape& shape = info.InputShape(0);
  ASSIGN_OR_RETURN(const std::vector<bool> reduced, ReducedAxes(info, shape));
  return SetReduction(info, device, merge, reduced,
                      ReducedShape(shape, reduced, info.Attr<int64_t>("keepdims", 1) != 0));
}

Status CreateGlobalPool(KernelInfo& info, const CudaDevicePtr& device, const Merge& merge) {
  RETURN_IF_ERROR(MakeGlobalPoolShape(info).status());
  std::vector<bool> reduced(info.InputShape(0).rank(), true);
  reduced[0] = reduced[1] = false;
  return SetReduction(info, device, merge, reduced,
                      ReducedShape(info.InputShape(0), reduced, true));
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
    const std::string op = merge.op_type;
    const bool sum_to = op == "SumTo", global_pool = op.starts_with("Global");
    registry.Add({.op_type = merge.op_type,
                  .domain = sum_to ? kCaesuraDomain : "",
                  .types = kFloatTypes,
                  .host_inputs = global_pool ? std::vector<int>() : std::vector<int>{1},
                  .create = [=](KernelInfo& info) {
                    return sum_to        ? CreateSumTo(info, device, merge)
                           : global_pool ? CreateGlobalPool(info, device, merge)
                                         : CreateReduction(info, device, merge);
                  }});
  }
}

}  // namespace caesura
