// SPDX-License-Identifier: Apache-2.0
// MaxPool, AveragePool, and the gradients of these and of GlobalMaxPool (ai.caesura). A thread has
// elements of the result: an output walks its window, an element of dX the windows that hold it, in
// their order. Sums of halves are kept in float32 until they are whole.
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/elementwise/element_source.h"
#include "core/kernels/cuda/fused_rows/row_source.h"
#include "core/kernels/cuda/kernel_list.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/pool_geometry.h"

namespace caesura {
namespace {

// KERNEL, STRIDE, DILATION and PAD are the window without what meets padding only; WINDOW,
// WINDOW_PAD and END_PAD as the node has them, for the divisors of averages.
constexpr char kPoolWindows[] = R"(
struct Sizes { i64 input[3], output[3]; };

// Element `at` of [images, sizes...].
struct Place {
  Index image, a0, a1, a2;

  __device__ Place(i64 at, const i64* sizes) {
    Index rest = (Index)at;
    a2 = rest % (Index)sizes[2];
    rest /= (Index)sizes[2];
    a1 = rest % (Index)sizes[1];
    rest /= (Index)sizes[1];
    a0 = rest % (Index)sizes[0];
    image = rest / (Index)sizes[0];
  }
};

__device__ inline Index PlaceOf(Index a0, Index a1, Index a2, const i64* sizes) {
  return (a0 * (Index)sizes[1] + a1) * (Index)sizes[2] + a2;
}
__device__ inline Index Elements(const i64* sizes) {
  return (Index)sizes[0] * (Index)sizes[1] * (Index)sizes[2];
}

// Calls visit(place in the image) for the elements of a window, in order.
template <typename Visit> __device__ inline void WalkWindow(const Place& o, const Sizes& sizes,
                                                            Visit& visit) {
  const Index b0 = o.a0 * STRIDE0 - PAD0, b1 = o.a1 * STRIDE1 - PAD1, b2 = o.a2 * STRIDE2 - PAD2;
  for (Index k0 = 0; k0 < KERNEL0; ++k0) {
    const Index i0 = b0 + k0 * DILATION0;
    if (i0 < 0 || i0 >= sizes.input[0]) continue;
    for (Index k1 = 0; k1 < KERNEL1; ++k1) {
      const Index i1 = b1 + k1 * DILATION1;
      if (i1 < 0 || i1 >= sizes.input[1]) continue;
      for (Index k2 = 0; k2 < KERNEL2; ++k2) {
        const Index i2 = b2 + k2 * DILATION2;
        if (i2 >= 0 && i2 < sizes.input[2]) visit(PlaceOf(i0, i1, i2, sizes.input));
      }
    }
  }
}

// The windows along an axis, from First to before End, that reach over input position `i`.
__device__ inline Index First(Index i, Index pad, Index reach, Index stride) {
  const Index from = i + pad - reach;
  return from <= 0 ? 0 : (from + stride - 1) / stride;
}
__device__ inline Index End(Index i, Index pad, Index stride, i64 outputs) {
  const Index last = i + pad < 0 ? -1 : (i + pad) / stride;
  return last < (Index)outputs ? last + 1 : (Index)outputs;
}

// Calls visit(output, o0, o1, o2) for the windows that hold an element of the input, in order.
template <typename Visit> __device__ inline void WalkHolders(const Place& i, const Sizes& sizes,
                                                             Visit& visit) {
  const Index end0 = End(i.a0, PAD0, STRIDE0, sizes.output[0]),
              end1 = End(i.a1, PAD1, STRIDE1, sizes.output[1]),
              end2 = End(i.a2, PAD2, STRIDE2, sizes.output[2]);
  for (Index o0 = First(i.a0, PAD0, (KERNEL0 - 1) * DILATION0, STRIDE0); o0 < end0; ++o0) {
    if ((i.a0 + PAD0 - o0 * STRIDE0) % DILATION0 != 0) continue;
    for (Index o1 = First(i.a1, PAD1, (KERNEL1 - 1) * DILATION1, STRIDE1); o1 < end1; ++o1) {
      if ((i.a1 + PAD1 - o1 * STRIDE1) % DILATION1 != 0) continue;
      for (Index o2 = First(i.a2, PAD2, (KERNEL2 - 1) * DILATION2, STRIDE2); o2 < end2; ++o2) {
        if ((i.a2 + PAD2 - o2 * STRIDE2) % DILATION2 != 0) continue;
        visit(PlaceOf(o0, o1, o2, sizes.output), o0, o1, o2);
      }
    }
  }
}
)";

constexpr char kMaxPool[] = R"(
// NaN wins. `best`: the place of the first maximum, of the last NaN; -1 for an empty window.
struct Maximum {
  const S* image;
  C most;
  Index best;

  __device__ void operator()(Index place) {
    const C v = Load(image + place);
    if (v > most || v != v || best < 0) {
      most = v;
      best = place;
    }
  }
};

// Each result where it is wanted: `places` in the image, `indices` in all of X.
extern "C" __global__ void max_pool(const S* x, S* y, i64* indices, int* places, i64 n,
    Sizes sizes) {
  for (i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x; at < n;
       at += (i64)gridDim.x * blockDim.x) {
    const Place o(at, sizes.output);
    const Index before = o.image * Elements(sizes.input);
    Maximum maximum = {x + before, LOWEST, -1};
    WalkWindow(o, sizes, maximum);
    if (y) Store(y + at, maximum.most);
    if (places) places[at] = (int)maximum.best;
    if (!indices) continue;
    Index index = maximum.best;
    if (COLUMN_MAJOR && index >= 0) {
      const Place i(index, sizes.input);
      index = i.a0 + (Index)sizes.input[0] * (i.a1 + (Index)sizes.input[1] * i.a2);
    }
    indices[at] = maximum.best < 0 ? -1 : (i64)before + index;
  }
}

struct MaximaHere {
  const S* dy;
  const int* places;
  Index here;
  C sum;

  __device__ void operator()(Index output, Index, Index, Index) {
    if (places[output] == here) sum += Load(dy + output);
  }
};

extern "C" __global__ void max_pool_gradient(const S* dy, const int* places, S* dx, i64 n,
    Sizes sizes) {
  for (i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x; at < n;
       at += (i64)gridDim.x * blockDim.x) {
    const Place i(at, sizes.input);
    const Index before = i.image * Elements(sizes.output);
    MaximaHere maxima = {dy + before, places + before, PlaceOf(i.a0, i.a1, i.a2, sizes.input), 0};
    WalkHolders(i, sizes, maxima);
    Store(dx + at, maxima.sum);
  }
}
)";

constexpr char kAveragePool[] = R"(
// A window's positions along an axis from `low` to before `high`.
__device__ inline Index Positions(Index start, Index kernel, Index step, Index low, Index high) {
  const Index first = start >= low ? 0 : (low - start + step - 1) / step;
  Index end = start >= high ? 0 : (high - start - 1) / step + 1;
  if (end > kernel) end = kernel;
  return end > first ? end - first : 0;
}
#define POSITIONS(o, a) Positions(o * STRIDE##a - WINDOW_PAD##a, WINDOW##a, DILATION##a, \
    INCLUDE_PAD ? -WINDOW_PAD##a : 0, (Index)sizes.input[a] + (INCLUDE_PAD ? END_PAD##a : 0))

// The factor that turns the sum of a window into its mean.
__device__ inline C Share(Index o0, Index o1, Index o2, const Sizes& sizes) {
  if (ALL_WHOLE) return (C)1 / (C)((i64)WINDOW0 * WINDOW1 * WINDOW2);
  const i64 count = (i64)POSITIONS(o0, 0) * POSITIONS(o1, 1) * POSITIONS(o2, 2);
  return count == 0 ? (C)0 : (C)1 / (C)count;
}

struct WindowSum {
  const S* image;
  C sum;

  __device__ void operator()(Index place) { sum += Load(image + place); }
};

extern "C" __global__ void average_pool(const S* x, S* y, i64 n, Sizes sizes) {
  for (i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x; at < n;
       at += (i64)gridDim.x * blockDim.x) {
    const Place o(at, sizes.output);
    WindowSum all = {x + o.image * Elements(sizes.input), 0};
    WalkWindow(o, sizes, all);
    Store(y + at, all.sum * Share(o.a0, o.a1, o.a2, sizes));
  }
}

struct ShareSum {
  const S* dy;
  const Sizes& sizes;
  C sum;

  __device__ void operator()(Index output, Index o0, Index o1, Index o2) {
    sum += Load(dy + output) * Share(o0, o1, o2, sizes);
  }
};

extern "C" __global__ void average_pool_gradient(const S* dy, S* dx, i64 n, Sizes sizes) {
  for (i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x; at < n;
       at += (i64)gridDim.x * blockDim.x) {
    const Place i(at, sizes.input);
    ShareSum shares = {dy + i.image * Elements(sizes.output), sizes, 0};
    WalkHolders(i, sizes, shares);
    Store(dx + at, shares.sum);
  }
}
)";

// A block an image. dX may lie over X: a thread writes what only it reads.
constexpr char kGlobalMaxPoolGrad[] = R"(
extern "C" __global__ void global_max_pool_gradient(const S* dy, const S* x, S* dx, i64 images,
    i64 count) {
  for (i64 image = blockIdx.x; image < images; image += gridDim.x) {
    const S* from = x + image * count;
    C most = -INFINITE;
    i64 best = -1;
    for (i64 j = threadIdx.x; j < count; j += blockDim.x) {
      const C v = Load(from + j);
      if (best < 0 || v > most || (v != v && most == most)) {
        most = v;
        best = j;
      }
    }
    const C all = RowReduce(most, RowMax());
    const bool has = best >= 0 && (most == all || (most != most && all != all));
    const i64 place = RowReduce(has ? best : count, RowMin());
    const C d = Load(dy + image);
    for (i64 j = threadIdx.x; j < count; j += blockDim.x)
      Store(dx + image * count + j, j == place ? d : (C)0);
  }
}
)";

struct PoolSizes {
  int64_t input[3], output[3];
};

PoolSizes SizesOf(const Window3& w) {
  PoolSizes out;
  std::copy(w.input, w.input + 3, out.input);
  std::copy(w.output, w.output + 3, out.output);
  return out;
}

// "#define NAME0 value" and so on.
std::string ByAxis(const std::string& name, const int64_t* values) {
  std::string out;
  for (int a = 0; a < 3; ++a) {
    // Without brackets a negative value would make a decrement of a minus before it.
    out += "#define " + name + std::to_string(a) + " (" + std::to_string(values[a]) + ")\n";
  }
  return out;
}

std::string PoolTypes(DType dtype) {
  return std::string("typedef ") + CudaStorageType(dtype) + " S;\ntypedef " +
         CudaComputeType(dtype) + " C;\n";
}

std::string PoolSource(DType dtype, const PoolGeometry& g) {
  const Window3 w(g.seen);
  // Positions of a window may lie beyond the input by as much as the padding.
  int64_t most = std::max<int64_t>(1, g.images) * std::max(w.InputCount(), w.OutputCount());
  for (int a = 0; a < 3; ++a) {
    const int64_t reach = w.kernel[a] * w.dilations[a] + w.output[a] * w.strides[a] + w.input[a];
    most = std::max(most, 2 * (reach + std::abs(w.pads[a])));
  }
  const Window3 all(g.window);
  for (int a = 0; a < 3; ++a)
    most = std::max(most, 2 * (all.kernel[a] * all.dilations[a] + all.pads[a]));
  return PoolTypes(dtype) + "typedef " + (most < int64_t{1} << 31 ? "int" : "i64") + " Index;\n" +
         ByAxis("KERNEL", w.kernel) + ByAxis("STRIDE", w.strides) +
         ByAxis("DILATION", w.dilations) + ByAxis("PAD", w.pads) + kPoolWindows;
}

Result<CudaKernel> MakePoolKernel(const CudaDevicePtr& device, const std::string& source,
                                  const char* name, int64_t n) {
  return CudaKernel::Make(device, source, name, GridOver(*device, n));
}

// --- MaxPool ---

std::string MaxPoolSource(const KernelInfo& info, DType dtype, const PoolGeometry& g) {
  const char* lowest = dtype == DType::kInt8 ? "-128" : dtype == DType::kUInt8 ? "0" : "-INFINITE";
  const bool column_major = info.Attr<int64_t>("storage_order", 0) != 0;
  return PoolSource(dtype, g) + "#define LOWEST (C)(" + lowest + ")\n#define COLUMN_MAJOR " +
         (column_major ? "true" : "false") + "\n" + kMaxPool;
}

Status CreateMaxPool(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const PoolGeometry g, MakeMaxPoolGeometry(info));
  const int64_t n = g.output.elements();
  const std::string source = MaxPoolSource(info, info.InputDType(0), g);
  ASSIGN_OR_RETURN(const CudaKernel pool, MakePoolKernel(device, source, "max_pool", n));
  info.SetCompute([=, has_indices = info.HasOutput(1),
                   sizes = SizesOf(Window3(g.seen))](KernelContext& context) -> Status {
    if (n == 0) return {};
    return pool.Launch(context.Input<void>(0), context.Output<void>(0),
                       has_indices ? context.Output<void>(1) : nullptr, static_cast<void*>(nullptr),
                       n, sizes);
  });
  return {};
}

// The windows' maxima are looked for first; then each element adds what the windows have for it.
Status CreateMaxPoolGrad(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const PoolGeometry g, MakePoolGradGeometry(info));
  if (g.window.InputCount() > std::numeric_limits<int32_t>::max())
    return info.Refuse("an image beyond 2^31 elements");
  const int64_t outputs = g.output.elements(), n = info.InputShape(1).elements();
  const size_t scratch = info.BookScratch(static_cast<size_t>(outputs) * sizeof(int32_t));
  const std::string source = MaxPoolSource(info, info.InputDType(1), g);
  ASSIGN_OR_RETURN(const CudaKernel pool, MakePoolKernel(device, source, "max_pool", outputs));
  ASSIGN_OR_RETURN(const CudaKernel gradient,
                   MakePoolKernel(device, source, "max_pool_gradient", n));
  info.SetCompute([=, sizes = SizesOf(Window3(g.seen))](KernelContext& context) -> Status {
    if (n == 0) return {};
    void* const places = context.Scratch<void>(scratch);
    void* const none = nullptr;
    if (outputs > 0)
      RETURN_IF_ERROR(pool.Launch(context.Input<void>(1), none, none, places, outputs, sizes));
    return gradient.Launch(context.Input<void>(0), places, context.Output<void>(0), n, sizes);
  });
  return {};
}

// --- AveragePool ---

std::string AveragePoolSource(const KernelInfo& info, const PoolGeometry& g) {
  const bool include_pad = info.Attr<int64_t>("count_include_pad", 0) != 0;
  const Window3 window(g.window);
  int64_t end_pads[3] = {0, 0, 0};
  bool whole = true;
  for (int a = 0, from = 3 - g.window.rank(); a < g.window.rank(); ++a) {
    const int64_t begin = g.window.pads_begin[a], end = g.window.pads_end[a];
    const int64_t last = (g.window.output[a] - 1) * g.window.strides[a] + g.window.Extent(a);
    whole &= include_pad ? last <= begin + g.window.input[a] + end
                         : begin == 0 && last <= g.window.input[a];
    end_pads[from + a] = end;
  }
  return PoolSource(info.InputDType(0), g) + ByAxis("WINDOW", window.kernel) +
         ByAxis("WINDOW_PAD", window.pads) + ByAxis("END_PAD", end_pads) + "#define INCLUDE_PAD " +
         (include_pad ? "true" : "false") + "\n#define ALL_WHOLE " + (whole ? "true" : "false") +
         "\n" + kAveragePool;
}

Status CreateAveragePool(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const PoolGeometry g, MakePoolGeometry(info, info.InputShape(0)));
  info.SetOutput(0, info.InputDType(0), g.output);
  const int64_t n = g.output.elements();
  ASSIGN_OR_RETURN(const CudaKernel pool,
                   MakePoolKernel(device, AveragePoolSource(info, g), "average_pool", n));
  info.SetCompute([=, sizes = SizesOf(Window3(g.seen))](KernelContext& context) -> Status {
    if (n == 0) return {};
    return pool.Launch(context.Input<void>(0), context.Output<void>(0), n, sizes);
  });
  return {};
}

Status CreateAveragePoolGrad(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const PoolGeometry g, MakePoolGradGeometry(info));
  const int64_t n = info.InputShape(1).elements();
  ASSIGN_OR_RETURN(const CudaKernel gradient,
                   MakePoolKernel(device, AveragePoolSource(info, g), "average_pool_gradient", n));
  info.SetCompute([=, sizes = SizesOf(Window3(g.seen))](KernelContext& context) -> Status {
    if (n == 0) return {};
    return gradient.Launch(context.Input<void>(0), context.Output<void>(0), n, sizes);
  });
  return {};
}

Status CreateGlobalMaxPoolGrad(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const GlobalPoolShape shape, MakeGlobalPoolGradShape(info));
  unsigned threads = 32;
  while (threads < 256 && threads * int64_t{4} < shape.count) threads *= 2;
  const int64_t blocks =
      std::clamp<int64_t>(shape.images, 1, int64_t{32} * device->multiprocessors());
  ASSIGN_OR_RETURN(
      const CudaKernel gradient,
      CudaKernel::Make(device,
                       CudaRowPrelude() + PoolTypes(info.InputDType(1)) + kGlobalMaxPoolGrad,
                       "global_max_pool_gradient", {static_cast<unsigned>(blocks), threads}));
  info.SetCompute([=](KernelContext& context) -> Status {
    if (shape.images * shape.count == 0) return {};
    return gradient.Launch(context.Input<void>(0), context.Input<void>(1), context.Output<void>(0),
                           shape.images, shape.count);
  });
  return {};
}

}  // namespace

void RegisterCudaPool(KernelRegistry& registry, const CudaDevicePtr& device) {
  auto add = [&](const char* op, const char* domain, DTypeSet types, auto create,
                 KernelDef def = {}) {
    def.op_type = op;
    def.domain = domain;
    def.types = types;
    def.create = [=](KernelInfo& info) { return create(info, device); };
    registry.Add(std::move(def));
  };
  add("MaxPool", "", kFloatTypes | DTypeSet{DType::kInt8, DType::kUInt8}, CreateMaxPool);
  add("AveragePool", "", kFloatTypes, CreateAveragePool);
  add("MaxPoolGrad", kCaesuraDomain, kFloatTypes, CreateMaxPoolGrad);
  add("AveragePoolGrad", kCaesuraDomain, kFloatTypes, CreateAveragePoolGrad);
  add("GlobalMaxPoolGrad", kCaesuraDomain, kFloatTypes, CreateGlobalMaxPoolGrad,
      {.aliases = {MayReuse(1, 0)}});
}

}  // namespace caesura
