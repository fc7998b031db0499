// SPDX-License-Identifier: Apache-2.0
// Gather, GatherElements, and GatherGrad (ai.caesura). The gradient first sorts the indices so that
// equal ones keep their order; then threads add the slices of one row in that order, each thread in
// columns of its own. Sums of halves are kept in float32 until they are whole.
#include <algorithm>
#include <bit>
#include <limits>

#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/elementwise/element_source.h"
#include "core/kernels/cuda/kernel_list.h"
#include "core/kernels/cuda/movement/strided_walk.h"
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

bool IsWideAligned(const void* a, const void* b) {
  return (reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b)) % 16 == 0;
}

constexpr char kGather[] = R"(
template <typename T> __device__ inline void Gather(const T* x, const I* indices, T* y, i64 n, i64 dim,
    i64 inner, i64 count, unsigned* error, unsigned number) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    const i64 column = i % inner, j = i / inner % count, o = i / inner / count;
    i64 index = Load(indices + j);
    if (index < 0) index += dim;
    if (index < 0 || index >= dim) { atomicCAS(error, 0u, number); index = 0; }
    y[i] = x[(o * dim + index) * inner + column];
  }
}

extern "C" __global__ void gather(const S* x, const I* indices, S* y, i64 n, i64 dim, i64 inner,
    i64 count, unsigned* error, unsigned number) {
  Gather(x, indices, y, n, dim, inner, count, error, number);
}

extern "C" __global__ void gather_wide(const uint4* x, const I* indices, uint4* y, i64 n, i64 dim,
    i64 inner, i64 count, unsigned* error, unsigned number) {
  Gather(x, indices, y, n, dim, inner, count, error, number);
}
)";

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
  const std::string source = std::string("typedef ") + CudaStorageType(info.InputDType(0)) +
                             " S;\ntypedef " + CudaStorageType(info.InputDType(1)) + " I;\n" +
                             kGather;
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
  const std::string source = std::string("typedef ") + CudaStorageType(info.InputDType(0)) +
                             " S;\ntypedef " + CudaStorageType(info.InputDType(1)) + " I;\n" +
                             walk.Struct() + R"(
extern "C" __global__ void gather_elements(const S* x, const I* indices, S* y, i64 n, i64 dim, i64 step,
    unsigned* error, unsigned number, Walk walk) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    i64 index = Load(indices + i);
    if (index < 0) index += dim;
    if (index < 0 || index >= dim) { atomicCAS(error, 0u, number); index = 0; }
)" + walk.Offsets() + "y[i] = x[offset0 + index * step];\n}\n}\n";
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

// Rows are in classes by their last bits, and a warp sorts the indices of one class: it walks all
// of them twice, to count each row's and to place them. A warp's rows are no other warp's, so that
// no result depends on which warp is first.
constexpr int kMostClassBits = 10;
constexpr int64_t kSortWarps = 8;
constexpr int64_t kNearBytes = 1024;

constexpr char kGradient[] = R"(
struct alignas(2 * sizeof(R)) Place { R row, j; };
#define CHUNK ((int)(32768 / sizeof(R)))  // indices in shared memory
#define NEAR ((int)(NEAR_BYTES / sizeof(R)))  // rows of a class whose numbers are there, too

extern "C" __global__ void sort_indices(const I* indices, Place* sorted, R* numbers, i64 count, i64 dim,
    int class_bits, unsigned* error, unsigned number) {
  __shared__ R rows[CHUNK];
  __shared__ R near_numbers[SORT_WARPS * NEAR];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const R own = blockIdx.x * (blockDim.x / 32) + warp, last_bits = ((R)1 << class_bits) - 1;
  const i64 own_rows = (dim + last_bits) >> class_bits;
  // Counters, one a row of the class: its indices; then, the place of its next one.
  R* next = own_rows <= NEAR ? near_numbers + warp * NEAR : numbers + own * own_rows;
  for (i64 s = lane; s < own_rows; s += 32) next[s] = 0;
  __syncwarp();
  R before = 0;  // indices of the classes before
  bool wrong = false;
  for (int pass = 0; pass < 2; ++pass) {
    for (i64 first = 0; first < count; first += CHUNK) {
      const int n = count - first < CHUNK ? (int)(count - first) : CHUNK;
      if (pass == 0 || count > CHUNK) {
        __syncthreads();  // the chunk before may still be read
        #pragma unroll 8
        for (int k = threadIdx.x; k < n; k += blockDim.x) {
          i64 index = Load(indices + first + k);
          if (index < 0) index += dim;
          const bool outside = index < 0 || index >= dim;
          wrong |= outside;
          rows[k] = outside ? 0 : (R)index;
        }
        __syncthreads();
      }
      #pragma unroll 4
      for (int at = 0; at < n; at += 32) {
        const R row = at + lane < n ? rows[at + lane] : -1, of = row & last_bits;
        const bool mine = (row >= 0) & (of == own);
        before += (pass == 0) & (row >= 0) & (of < own);
        const unsigned all = __ballot_sync(0xffffffffu, mine);
        if (all == 0) continue;
        const unsigned equal = __match_any_sync(0xffffffffu, mine ? row : (R)-1);
        const int to_left = __popc(equal & ((1u << lane) - 1));
        const R to = mine ? next[row >> class_bits] : 0;
        __syncwarp();
        if (mine && to_left == 0) next[row >> class_bits] = to + __popc(equal);
        if (mine && pass == 1) sorted[to + to_left] = Place{row, (R)(first + at + lane)};
        __syncwarp();
      }
    }
    if (pass == 1) break;
    for (int m = 16; m > 0; m >>= 1) before += __shfl_xor_sync(0xffffffffu, before, m);
    for (i64 s = 0; s < own_rows; s += 32) {
      const R many = s + lane < own_rows ? next[s + lane] : 0;
      R sum = many;
      for (int m = 1; m < 32; m <<= 1) {
        const R left = __shfl_up_sync(0xffffffffu, sum, m);
        if (lane >= m) sum += left;
      }
      if (s + lane < own_rows) next[s + lane] = before + sum - many;
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
    __syncwarp();
  }
  if (wrong) atomicCAS(error, 0u, number);
}

// `pieces` of 16 bytes, then what is left of n elements.
extern "C" __global__ void zero(S* dx, i64 pieces, i64 n) {
  const i64 from = blockIdx.x * (i64)blockDim.x + threadIdx.x, step = (i64)gridDim.x * blockDim.x;
  for (i64 i = from; i < pieces; i += step) ((uint4*)dx)[i] = make_uint4(0, 0, 0, 0);
  for (i64 i = pieces * (16 / sizeof(S)) + from; i < n; i += step) Store(dx + i, (C)0);
}

// A block takes the first of a row's places, and with it all of them, in a tile of the columns;
// a thread V columns. Several slices are on their way before the first is added.
template <int V> __device__ inline void AddSlices(const S* dy, const Place* sorted, S* dx, i64 count,
    i64 dim, i64 inner, i64 columns, i64 tiles) {
  struct alignas(V * sizeof(S)) Piece { S at[V]; };
  constexpr int kBatch = 8;
  for (i64 i = blockIdx.x; i < count * tiles; i += gridDim.x) {
    const i64 p = tiles == 1 ? i : i / tiles;
    const i64 column = ((i - p * tiles) * blockDim.x + threadIdx.x) * V;
    const Place own = sorted[p];
    const R row = own.row;
    if (column >= columns || (p > 0 && sorted[p - 1].row == row)) continue;
    const i64 o = columns == inner ? 0 : column / inner, within = column - o * inner;
    const S* from = dy + o * count * inner + within;
    Piece* to = (Piece*)(dx + (o * dim + row) * inner + within);
    Piece sum = *to;
    C sums[V];
    #pragma unroll
    for (int e = 0; e < V; ++e) sums[e] = Load(sum.at + e);
    bool more = true;
    for (i64 q = p; more; q += kBatch) {
      // No load depends on a branch: what is not of the row is loaded, and left out.
      Piece x[kBatch];
      Place places[kBatch];
      bool is_row[kBatch];
      #pragma unroll
      for (int k = 0; k < kBatch; ++k) places[k] = sorted[q + k < count ? q + k : p];
      #pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        is_row[k] = (q + k < count) & (places[k].row == row);
        x[k] = *(const Piece*)(from + (is_row[k] ? places[k].j : own.j) * inner);
      }
      #pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (!is_row[k]) continue;
        #pragma unroll
        for (int e = 0; e < V; ++e) sums[e] += Load(x[k].at + e);
      }
      more = is_row[kBatch - 1];
    }
    #pragma unroll
    for (int e = 0; e < V; ++e) Store(sum.at + e, sums[e]);
    *to = sum;
  }
}

extern "C" __global__ void add_slices(const S* dy, const Place* sorted, S* dx, i64 count, i64 dim,
    i64 inner, i64 columns, i64 tiles) {
  AddSlices<1>(dy, sorted, dx, count, dim, inner, columns, tiles);
}

extern "C" __global__ void add_slices_wide(const S* dy, const Place* sorted, S* dx, i64 count, i64 dim,
    i64 inner, i64 columns, i64 tiles) {
  AddSlices<16 / sizeof(S)>(dy, sorted, dx, count, dim, inner, columns, tiles);
}
)";

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
  const std::string source =
      std::string("typedef ") + CudaStorageType(dtype) + " S;\ntypedef " + CudaComputeType(dtype) +
      " C;\ntypedef " + CudaStorageType(info.InputDType(1)) + " I;\ntypedef " +
      (small ? "int" : "i64") + " R;\n#define SORT_WARPS " + std::to_string(kSortWarps) +
      "\n#define NEAR_BYTES " + std::to_string(kNearBytes) + "\n" + kGradient;
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
