// SPDX-License-Identifier: Apache-2.0
// Reductions over any axes, global pools, and SumTo (ai.caesura). Where the elements under an
// output lie side by side, a team of threads takes them in turns; where the outputs' do, each
// thread has outputs of its own. Elements under few outputs are in parts, which a second kernel
// merges. The order of a sum depends on the shape and the device only.
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/elementwise/element_source.h"
#include "core/kernels/cuda/fused_rows/row_source.h"
#include "core/kernels/cuda/kernel_list.h"
#include "core/kernels/cuda/movement/strided_walk.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/factory_checks.h"
#include "core/kernels/spec/pool_geometry.h"
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
    {"GlobalAveragePool", "RowSum", "0", "v", "all / n"},
    {"GlobalMaxPool", "RowMax", "-INFINITE", "v", "all"},
};

constexpr char kReduce[] = R"(
struct alignas(V * sizeof(S)) Piece { S at[V]; };
struct alignas(V * sizeof(D) > 16 ? 16 : V * sizeof(D)) Results { D at[V]; };

// The same elements, by one load or by several.
template <bool aligned> __device__ inline Piece LoadPiece(const S* x) {
  Piece out;
  if (aligned) {
    out = *(const Piece*)x;
  } else {
    #pragma unroll
    for (int e = 0; e < V; ++e) out.at[e] = x[e];
  }
  return out;
}

__device__ inline C Merged(C part, C v) { return OP()(part, (C)(ELEMENT)); }
__device__ inline O Result(C all, i64 n) { return (O)(RESULT); }

// Merges the values of a team; the first of its threads has the result.
__device__ inline C TeamReduce(C v) {
#if TEAM > 32
  return RowReduce(v, OP());
#else
  for (int m = TEAM / 2; m > 0; m >>= 1) v = OP()(v, __shfl_xor_sync(0xffffffffu, v, m));
  return v;
#endif
}

// A team an output and part, V elements under it a thread.
template <bool aligned> __device__ inline void ReduceRows(const S* x, D* y, C* parts, i64 outputs,
    i64 n, i64 part_count, i64 part_n, const Kept& kept, const Under& under) {
  const int lane = threadIdx.x % TEAM;
  const i64 step = (i64)gridDim.x * (blockDim.x / TEAM);
  for (i64 item = blockIdx.x * (i64)(blockDim.x / TEAM) + threadIdx.x / TEAM;
       item < outputs * part_count; item += step) {
    const i64 i = part_count == 1 ? item : item / part_count, part = item - i * part_count;
    KEPT_OFFSETS
    const S* from = x + at0;
    const i64 end = (part + 1) * part_n < n ? (part + 1) * part_n : n;
    C all = FIRST;
    #pragma unroll 4
    for (i64 j = part * part_n + lane * V; j < end; j += TEAM * V) {
      UNDER_OFFSETS
      const Piece v = LoadPiece<aligned>(from + off0);
      #pragma unroll
      for (int e = 0; e < V; ++e) all = Merged(all, Load(v.at + e));
    }
    all = TeamReduce(all);
    if (lane != 0) continue;
    if (part_count == 1) Store(y + i, Result(all, n));
    else parts[item] = all;
  }
}

// A thread V outputs, and every SHARERS'th of the elements under them.
template <bool aligned> __device__ inline void ReduceColumns(const S* x, D* y, C* parts, i64 outputs,
    i64 n, i64 part_count, i64 part_n, const Kept& kept, const Under& under, C (*of_sharer)[V]) {
  const int lanes = blockDim.x / SHARERS, lane = threadIdx.x % lanes, sharer = threadIdx.x / lanes;
  const i64 tiles = (outputs / V + lanes - 1) / lanes;
  for (i64 item = blockIdx.x; item < tiles * part_count; item += gridDim.x) {
    const i64 part = part_count == 1 ? 0 : item / tiles;
    const i64 i = ((item - part * tiles) * lanes + lane) * V;
    C all[V];
    #pragma unroll
    for (int e = 0; e < V; ++e) all[e] = FIRST;
    if (i < outputs) {
      KEPT_OFFSETS
      const S* from = x + at0;
      const i64 end = (part + 1) * part_n < n ? (part + 1) * part_n : n;
      #pragma unroll 8
      for (i64 j = part * part_n + sharer; j < end; j += SHARERS) {
        UNDER_OFFSETS
        const Piece v = LoadPiece<aligned>(from + off0);
        #pragma unroll
        for (int e = 0; e < V; ++e) all[e] = Merged(all[e], Load(v.at + e));
      }
    }
    if (SHARERS > 1) {
      #pragma unroll
      for (int e = 0; e < V; ++e) of_sharer[threadIdx.x][e] = all[e];
      __syncthreads();
      for (int k = 1; k < SHARERS && sharer == 0; ++k) {
        #pragma unroll
        for (int e = 0; e < V; ++e) all[e] = OP()(all[e], of_sharer[k * lanes + lane][e]);
      }
      __syncthreads();
    }
    if (sharer != 0 || i >= outputs) continue;
    Results results;
    #pragma unroll
    for (int e = 0; e < V; ++e) {
      if (part_count > 1) parts[part * outputs + i + e] = all[e];
      else if (aligned) Store(results.at + e, Result(all[e], n));
      else Store(y + i + e, Result(all[e], n));
    }
    if (part_count == 1 && aligned) *(Results*)(y + i) = results;
  }
}

extern "C" __global__ void reduce(const S* x, D* y, C* parts, i64 outputs, i64 n, i64 part_count,
    i64 part_n, int aligned, Kept kept, Under under) {
#if COLUMNS
  __shared__ C of_sharer[SHARERS > 1 ? 256 : 1][V];
  if (aligned) ReduceColumns<true>(x, y, parts, outputs, n, part_count, part_n, kept, under, of_sharer);
  else ReduceColumns<false>(x, y, parts, outputs, n, part_count, part_n, kept, under, of_sharer);
#else
  if (aligned) ReduceRows<true>(x, y, parts, outputs, n, part_count, part_n, kept, under);
  else ReduceRows<false>(x, y, parts, outputs, n, part_count, part_n, kept, under);
#endif
}

// Parts of columns: a thread an output. Parts of rows: a warp.
extern "C" __global__ void merge_parts(const C* parts, D* y, i64 outputs, i64 n, i64 part_count) {
  const int warp = COLUMNS ? 1 : 32, lane = threadIdx.x % warp;
  for (i64 i = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / warp; i < outputs;
       i += (i64)gridDim.x * blockDim.x / warp) {
    C all = FIRST;
    #pragma unroll 8
    for (i64 part = lane; part < part_count; part += warp)
      all = OP()(all, parts[COLUMNS ? part * outputs + i : i * part_count + part]);
#if !COLUMNS
    for (int m = 16; m > 0; m >>= 1) all = OP()(all, __shfl_xor_sync(0xffffffffu, all, m));
#endif
    if (lane == 0) Store(y + i, Result(all, n));
  }
}
)";

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
  const std::pair<const char*, std::string> macros[] = {
      {"OP", merge.op},
      {"FIRST", merge.first},
      {"ELEMENT", merge.element},
      {"RESULT", merge.result},
      {"COLUMNS", std::to_string(spread.columns)},
      {"V", std::to_string(spread.wide)},
      {"TEAM", std::to_string(spread.team)},
      {"SHARERS", std::to_string(spread.sharers)}};
  std::string source = CudaRowPrelude() + kept.Struct("Kept") + under.Struct("Under") + "typedef " +
                       CudaStorageType(dtype) + " S;\ntypedef " + CudaComputeType(dtype) +
                       " C;\ntypedef " + CudaStorageType(out_dtype) + " D;\ntypedef " +
                       CudaComputeType(out_dtype) + " O;\n";
  for (const auto& [name, text] : macros)
    source += std::string("#define ") + name + " " + text + "\n";
  source += kReduce;
  for (const auto& [name, text] :
       {std::pair("KEPT_OFFSETS", kept.Offsets("i", "kept", "at")),
        std::pair("UNDER_OFFSETS", under.Offsets("j", "under", "off"))}) {
    for (size_t at; (at = source.find(name)) != std::string::npos;)
      source.replace(at, std::string(name).size(), text);
  }
  return source;
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
