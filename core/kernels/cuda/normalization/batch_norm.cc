// SPDX-License-Identifier: Apache-2.0
// BatchNormalization, BatchNormalizationTraining and BatchNormalizationGrad (ai.caesura). A
// channel's elements are in parts: a block sums a part of one channel (of 32 channels where they
// lie side by side), a warp merges the parts of a channel in double, and an elementwise kernel maps
// all elements. Sums of float32 and halves are in float32, their order depends on the shape and the
// device only.
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/elementwise/element_source.h"
#include "core/kernels/cuda/fused_rows/row_source.h"
#include "core/kernels/cuda/kernel_list.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/batch_norm_spec.h"

namespace caesura {
namespace {

// x [batch, channels, positions]; element j of a channel counts through batch and positions.
constexpr char kChannelElements[] = R"(
__device__ inline Index ElementAt(Index channel, Index j, Index channels, Index positions) {
  if (SIDE_BY_SIDE) return j * channels + channel;
  return (j / positions * channels + channel) * positions + j % positions;
}
__device__ inline Index ChannelOf(Index element, Index channels, Index positions) {
  return (SIDE_BY_SIDE ? element : element / positions) % channels;
}

// The sum over the block's threads that have the same channel; each of them gets it.
__device__ inline C ChannelSum(C v) {
#if LANES == 1
  return RowReduce(v, RowSum());
#else
  __shared__ C of_thread[THREADS];
  __syncthreads();  // it may still be read from the call before
  of_thread[threadIdx.x] = v;
  __syncthreads();
  v = of_thread[threadIdx.x % LANES];
  for (int k = LANES; k < THREADS; k += LANES) v += of_thread[k + threadIdx.x % LANES];
  return v;
#endif
}

// The elements [first, end) of a channel that a block sums in its turn; each thread takes some.
struct Part {
  Index channel, first, end;
  i64 at;  // of its sums

  __device__ Part(i64 item, i64 channels, i64 n, i64 part_count, i64 part_n) {
    const i64 tiles = (channels + LANES - 1) / LANES, part = item / tiles;
    channel = (Index)((item - part * tiles) * LANES + threadIdx.x % LANES);
    first = (Index)(part * part_n);
    end = (Index)(first + part_n < n ? first + part_n : n);
    at = channel * part_count + part;
  }
  __device__ Index own_first() const { return first + threadIdx.x / LANES * V; }
};

// The sum of `value` of an index of a part, by all lanes of a warp.
template <typename Value> __device__ inline double SumParts(i64 part_count, Value value) {
  double sum = 0;
  #pragma unroll 4
  for (i64 part = threadIdx.x % 32; part < part_count; part += 32) sum += value(part);
  return WarpReduce(sum, RowSum());
}
)";

constexpr char kMoments[] = R"(
struct MeanOf {
  __device__ C operator()(C v) const { return v; }
};
struct SquareAbout {
  C mean;
  __device__ C operator()(C v) const { return (v - mean) * (v - mean); }
};

template <bool kWhole, typename Term> __device__ inline C SumOf(const S* x, const Part& part,
    Index channels, Index positions, Term term) {
  C sum = 0;
  #pragma unroll 4
  for (Index j = part.own_first(); j < part.end; j += THREADS / LANES * V) {
    const Index at = ElementAt(part.channel, j, channels, positions);
    const Vector<S, V> v = LoadVector<V, kWhole>(x + at);
    #pragma unroll
    for (int e = 0; e < V; ++e) sum += term(Load(v.at + e));
  }
  return sum;
}

// The means of parts, then their sums of squares about them.
template <bool kWhole> __device__ inline void Moments(const S* x, C* sums, i64 channels,
    i64 positions, i64 n, i64 part_count, i64 part_n) {
  const i64 items = (channels + LANES - 1) / LANES * part_count;
  for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
    const Part part(item, channels, n, part_count, part_n);
    const bool has = part.channel < channels;
    const C sum = has ? SumOf<kWhole>(x, part, channels, positions, MeanOf()) : (C)0;
    const C mean = ChannelSum(sum) / (C)(part.end - part.first);
    const C own = has ? SumOf<kWhole>(x, part, channels, positions, SquareAbout{mean}) : (C)0;
    const C squares = ChannelSum(own);
    if (!has || threadIdx.x / LANES != 0) continue;
    sums[part.at] = mean;
    sums[channels * part_count + part.at] = squares;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) moments(const S* x, C* sums, i64 channels,
    i64 positions, i64 n, i64 part_count, i64 part_n, int aligned) {
  if (aligned) Moments<true>(x, sums, channels, positions, n, part_count, part_n);
  else Moments<false>(x, sums, channels, positions, n, part_count, part_n);
}

struct PartMean {
  const C* means;
  i64 n, part_n;
  __device__ i64 Count(i64 part) const {
    return (part + 1) * part_n < n ? part_n : n - part * part_n;
  }
  __device__ double operator()(i64 part) const { return (double)means[part] * Count(part); }
};
struct PartSquares {
  PartMean of;
  const C* squares;
  double mean;
  __device__ double operator()(i64 part) const {
    const double d = of.means[part] - mean;
    return squares[part] + d * d * of.Count(part);
  }
};

__device__ inline void StoreStatistic(R* to, i64 channel, double v) {
  if (to) Store(to + channel, (RC)v);
}

// `folded`: the mean, scale / deviation, and the bias of each channel.
extern "C" __global__ void finish_moments(const C* sums, const P* scale, const P* bias,
    const R* mean_before, const R* variance_before, R* running_mean, R* running_variance,
    R* saved_mean, R* saved_inv_std, C* folded, i64 channels, i64 n, i64 part_count, i64 part_n,
    double epsilon, double momentum, double correction) {
  for (i64 c = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / 32; c < channels;
       c += (i64)gridDim.x * blockDim.x / 32) {
    const PartMean of = {sums + c * part_count, n, part_n};
    const double mean = SumParts(part_count, of) / n;
    const PartSquares about = {of, sums + (channels + c) * part_count, mean};
    const double variance = SumParts(part_count, about) / n;
    if (threadIdx.x % 32 != 0) continue;
    const double inv_std = 1 / sqrt(variance + epsilon);
    StoreStatistic(running_mean, c, Load(mean_before + c) * momentum + mean * (1 - momentum));
    StoreStatistic(running_variance, c,
                   Load(variance_before + c) * momentum + variance * correction * (1 - momentum));
    StoreStatistic(saved_mean, c, mean);
    StoreStatistic(saved_inv_std, c, inv_std);
    folded[c] = (C)mean;
    folded[channels + c] = (C)(Load(scale + c) * inv_std);
    folded[2 * channels + c] = (C)Load(bias + c);
  }
}
)";

// y = (x - mean) * scale + shift: the mean goes first, where little is lost of it.
constexpr char kNormalize[] = R"(
struct Affine { C mean, scale, shift; };

struct Folded {
  const C* at;
  i64 channels;
  __device__ Affine operator()(Index c) const {
    return {at[c], at[channels + c], at[2 * channels + c]};
  }
};

struct ByRunning {
  const P *scale, *bias;
  const R *mean, *variance;
  double epsilon;
  __device__ Affine operator()(Index c) const {
    const C deviation = SQRT((C)Load(variance + c) + (C)epsilon);
    return {(C)Load(mean + c), (C)Load(scale + c) / deviation, (C)Load(bias + c)};
  }
};

template <bool kWhole, typename Of> __device__ inline void Normalize(const S* x, S* y, i64 elements,
    Index channels, Index positions, const Of& affine_of) {
  for (i64 i = (blockIdx.x * (i64)blockDim.x + threadIdx.x) * M; i < elements;
       i += (i64)gridDim.x * blockDim.x * M) {
    const Index channel = ChannelOf((Index)i, channels, positions);
    const Vector<S, M> from = LoadVector<M, kWhole>(x + i);
    Vector<S, M> to;
    Affine affine = affine_of(channel);
    #pragma unroll
    for (int e = 0; e < M; ++e) {
      if (SIDE_BY_SIDE && e > 0) affine = affine_of(channel + e);
      Store(to.at + e, (Load(from.at + e) - affine.mean) * affine.scale + affine.shift);
    }
    StoreVector<kWhole>(y + i, to);
  }
}

extern "C" __global__ void normalize(const S* x, S* y, i64 elements, i64 channels, i64 positions,
    const C* folded, int aligned) {
  const Folded affine = {folded, channels};
  if (aligned) Normalize<true>(x, y, elements, channels, positions, affine);
  else Normalize<false>(x, y, elements, channels, positions, affine);
}

extern "C" __global__ void normalize_by_running(const S* x, S* y, i64 elements, i64 channels,
    i64 positions, const P* scale, const P* bias, const R* mean, const R* variance, double epsilon,
    int aligned) {
  const ByRunning affine = {scale, bias, mean, variance, epsilon};
  if (aligned) Normalize<true>(x, y, elements, channels, positions, affine);
  else Normalize<false>(x, y, elements, channels, positions, affine);
}
)";

constexpr char kBatchGradient[] = R"(
// Sums of parts: of dY, then of dY * (X - mean).
template <bool kWhole> __device__ inline void GradientSums(const S* dy, const S* x, const R* means,
    C* sums, i64 channels, i64 positions, i64 n, i64 part_count, i64 part_n) {
  const i64 items = (channels + LANES - 1) / LANES * part_count;
  for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
    const Part part(item, channels, n, part_count, part_n);
    const bool has = part.channel < channels;
    C sum = 0, product = 0;
    if (has) {
      const C mean = (C)Load(means + part.channel);
      #pragma unroll 4
      for (Index j = part.own_first(); j < part.end; j += THREADS / LANES * V) {
        const Index at = ElementAt(part.channel, j, channels, positions);
        const Vector<S, V> d = LoadVector<V, kWhole>(dy + at), v = LoadVector<V, kWhole>(x + at);
        #pragma unroll
        for (int e = 0; e < V; ++e) {
          sum += Load(d.at + e);
          product += Load(d.at + e) * (Load(v.at + e) - mean);
        }
      }
    }
    sum = ChannelSum(sum);
    product = ChannelSum(product);
    if (!has || threadIdx.x / LANES != 0) continue;
    sums[part.at] = sum;
    sums[channels * part_count + part.at] = product;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) gradient_sums(const S* dy, const S* x,
    const R* means, C* sums, i64 channels, i64 positions, i64 n, i64 part_count, i64 part_n,
    int aligned) {
  if (aligned) GradientSums<true>(dy, x, means, sums, channels, positions, n, part_count, part_n);
  else GradientSums<false>(dy, x, means, sums, channels, positions, n, part_count, part_n);
}

struct PartSum {
  const C* sums;
  __device__ double operator()(i64 part) const { return sums[part]; }
};

// dX = a * dY + b * (X - mean) + c.
struct Map { C a, b, mean, c; };

extern "C" __global__ void finish_gradient(const C* sums, const P* scale, const R* means,
    const R* inv_stds, P* d_scale, P* d_bias, Map* maps, i64 channels, i64 n, i64 part_count) {
  for (i64 c = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / 32; c < channels;
       c += (i64)gridDim.x * blockDim.x / 32) {
    const double sum = SumParts(part_count, PartSum{sums + c * part_count});
    const double product = SumParts(part_count, PartSum{sums + (channels + c) * part_count});
    if (threadIdx.x % 32 != 0) continue;
    const double inv_std = Load(inv_stds + c), by_scale = product * inv_std;
    const double a = Load(scale + c) * inv_std;
    maps[c] = {(C)a, (C)(-a * inv_std * by_scale / n), (C)Load(means + c), (C)(-a * sum / n)};
    if (d_scale) Store(d_scale + c, (PC)by_scale);
    if (d_bias) Store(d_bias + c, (PC)sum);
  }
}

template <bool kWhole> __device__ inline void Gradient(const S* dy, const S* x, const Map* maps,
    S* dx, i64 elements, Index channels, Index positions) {
  for (i64 i = (blockIdx.x * (i64)blockDim.x + threadIdx.x) * M; i < elements;
       i += (i64)gridDim.x * blockDim.x * M) {
    const Index channel = ChannelOf((Index)i, channels, positions);
    const Vector<S, M> d = LoadVector<M, kWhole>(dy + i), v = LoadVector<M, kWhole>(x + i);
    Vector<S, M> to;
    Map map = maps[channel];
    #pragma unroll
    for (int e = 0; e < M; ++e) {
      if (SIDE_BY_SIDE && e > 0) map = maps[channel + e];
      Store(to.at + e, map.a * Load(d.at + e) + map.b * (Load(v.at + e) - map.mean) + map.c);
    }
    StoreVector<kWhole>(dx + i, to);
  }
}

extern "C" __global__ void gradient(const S* dy, const S* x, const Map* maps, S* dx, i64 elements,
    i64 channels, i64 positions, int aligned) {
  if (aligned) Gradient<true>(dy, x, maps, dx, elements, channels, positions);
  else Gradient<false>(dy, x, maps, dx, elements, channels, positions);
}
)";

int64_t RoundedUp(int64_t n, int64_t by) { return (n + by - 1) / by; }

// The way in which the channels' elements are spread over threads.
struct ChannelSpread {
  ChannelView view;
  bool side_by_side;   // neighbours in memory are of neighbouring channels
  int64_t lanes;       // channels of a block
  int64_t threads;     // of a block
  int64_t wide = 1;    // elements of one load of a channel
  int64_t mapped = 1;  // elements of one load of any channels
  int64_t parts, part_n, blocks;

  ChannelSpread(const CudaDevice& device, const ChannelView& v, int64_t of_piece)
      : view(v), side_by_side(v.positions == 1 && v.channels > 1), lanes(side_by_side ? 32 : 1) {
    // A part is read twice for the moments: the second time it is in the cache.
    constexpr int64_t kMostOfPart = 8192;
    const int64_t chips = device.multiprocessors(), n = v.per_channel();
    const int64_t row = side_by_side ? v.channels : v.channels == 1 ? n : v.positions;
    if (row % of_piece == 0) mapped = of_piece;
    if (!side_by_side) wide = mapped;
    threads = 32;
    while (threads < 256 && threads / lanes * wide * 4 < n) threads *= 2;
    const int64_t tiles = RoundedUp(v.channels, lanes), least = 4 * threads / lanes * wide;
    parts = tiles < 2 * chips
                ? std::clamp<int64_t>(4 * chips / tiles, 1, std::max<int64_t>(n / least, 1))
                : 1;
    parts = std::max(parts, RoundedUp(n, kMostOfPart * lanes));
    part_n = RoundedUp(RoundedUp(n, parts), wide) * wide;
    parts = RoundedUp(n, part_n);
    blocks = std::min(tiles * parts, 32 * chips);
  }
  size_t PartBytes(size_t element) const {
    return static_cast<size_t>(2 * parts * view.channels) * element;
  }
};

bool Is16Aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  });
}

std::string BatchNormSource(DType dtype, const BatchNormSpec& spec, const ChannelSpread& spread) {
  const std::pair<const char*, const char*> types[] = {
      {"S", CudaStorageType(dtype)},
      {"C", CudaComputeType(dtype)},
      {"P", CudaStorageType(spec.parameter_type)},
      {"PC", CudaComputeType(spec.parameter_type)},
      {"R", CudaStorageType(spec.stat_type)},
      {"RC", CudaComputeType(spec.stat_type)},
      // Divisions of 32 bits take a fraction of the time.
      {"Index", spec.view.elements() < int64_t{1} << 31 ? "unsigned" : "i64"}};
  const std::pair<const char*, int64_t> numbers[] = {{"LANES", spread.lanes},
                                                     {"THREADS", spread.threads},
                                                     {"V", spread.wide},
                                                     {"M", spread.mapped},
                                                     {"SIDE_BY_SIDE", spread.side_by_side}};
  std::string out = CudaRowPrelude();
  for (const auto& [name, type] : types) out += std::string("typedef ") + type + " " + name + ";\n";
  for (const auto& [name, number] : numbers)
    out += std::string("#define ") + name + " " + std::to_string(number) + "\n";
  return out + "#define SQRT " + (dtype == DType::kFloat64 ? "sqrt" : "sqrtf") + "\n" +
         kChannelElements;
}

// The kernels of sums, of merging and of all elements.
struct ChannelKernels {
  CudaKernel sums, finish, map;

  static Result<ChannelKernels> Make(const CudaDevicePtr& device, const std::string& source,
                                     const ChannelSpread& spread, const char* sums,
                                     const char* finish, const char* map) {
    const unsigned blocks = static_cast<unsigned>(spread.blocks);
    ASSIGN_OR_RETURN(
        CudaKernel of_sums,
        CudaKernel::Make(device, source, sums, {blocks, static_cast<unsigned>(spread.threads)}));
    ASSIGN_OR_RETURN(
        CudaKernel of_finish,
        CudaKernel::Make(device, source, finish, GridOver(*device, 32 * spread.view.channels)));
    ASSIGN_OR_RETURN(CudaKernel of_map,
                     CudaKernel::Make(device, source, map,
                                      GridOver(*device, spread.view.elements() / spread.mapped)));
    return ChannelKernels{std::move(of_sums), std::move(of_finish), std::move(of_map)};
  }
};

// Nothing has no mean, and the types of parameters and statistics are not those of the registry.
Status CheckHasElements(const KernelInfo& info, const BatchNormSpec& spec) {
  if (spec.view.elements() == 0) return info.Refuse("a batch norm of nothing");
  for (const DType dtype : {spec.parameter_type, spec.stat_type}) {
    if (!kFloatTypes.Contains(dtype)) return info.Refuse("has parameters of an unexpected type");
  }
  return {};
}

int64_t OfPiece(DType dtype) { return 16 / static_cast<int64_t>(DTypeSize(dtype)); }
size_t ComputeBytes(DType dtype) {
  return dtype == DType::kFloat64 ? sizeof(double) : sizeof(float);
}

Status SetTrainingNorm(KernelInfo& info, const CudaDevicePtr& device, const BatchNormSpec& spec) {
  const DType dtype = info.InputDType(0);
  const ChannelSpread spread(*device, spec.view, OfPiece(dtype));
  const size_t sums = info.BookScratch(spread.PartBytes(ComputeBytes(dtype)));
  const size_t folded =
      info.BookScratch(static_cast<size_t>(3 * spec.view.channels) * ComputeBytes(dtype));
  ASSIGN_OR_RETURN(
      const ChannelKernels kernels,
      ChannelKernels::Make(device, BatchNormSource(dtype, spec, spread) + kMoments + kNormalize,
                           spread, "moments", "finish_moments", "normalize"));
  info.SetCompute([=](KernelContext& context) -> Status {
    const ChannelView& v = spec.view;
    const void* x = context.Input<void>(0);
    void* y = context.Output<void>(0);
    void *of_parts = context.Scratch<void>(sums), *of_channels = context.Scratch<void>(folded);
    const auto output = [&](int i) { return spec.wanted[i] ? context.Output<void>(i) : nullptr; };
    RETURN_IF_ERROR(kernels.sums.Launch(x, of_parts, v.channels, v.positions, v.per_channel(),
                                        spread.parts, spread.part_n, int{Is16Aligned({x})}));
    RETURN_IF_ERROR(kernels.finish.Launch(of_parts, context.Input<void>(1), context.Input<void>(2),
                                          context.Input<void>(3), context.Input<void>(4), output(1),
                                          output(2), output(3), output(4), of_channels, v.channels,
                                          v.per_channel(), spread.parts, spread.part_n,
                                          spec.epsilon, spec.momentum, spec.correction));
    return kernels.map.Launch(x, y, v.elements(), v.channels, v.positions, of_channels,
                              int{Is16Aligned({x, y})});
  });
  return {};
}

Status CreateBatchNorm(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const BatchNormSpec spec, MakeBatchNormSpec(info));
  RETURN_IF_ERROR(CheckHasElements(info, spec));
  if (spec.training) return SetTrainingNorm(info, device, spec);
  const DType dtype = info.InputDType(0);
  const ChannelSpread spread(*device, spec.view, OfPiece(dtype));
  ASSIGN_OR_RETURN(const CudaKernel normalize,
                   CudaKernel::Make(device, BatchNormSource(dtype, spec, spread) + kNormalize,
                                    "normalize_by_running",
                                    GridOver(*device, spec.view.elements() / spread.mapped)));
  info.SetCompute([=](KernelContext& context) -> Status {
    const void* x = context.Input<void>(0);
    void* y = context.Output<void>(0);
    return normalize.Launch(x, y, spec.view.elements(), spec.view.channels, spec.view.positions,
                            context.Input<void>(1), context.Input<void>(2), context.Input<void>(3),
                            context.Input<void>(4), spec.epsilon, int{Is16Aligned({x, y})});
  });
  return {};
}

Status CreateBatchNormTraining(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const BatchNormSpec spec, MakeBatchNormTrainingSpec(info));
  RETURN_IF_ERROR(CheckHasElements(info, spec));
  return SetTrainingNorm(info, device, spec);
}

Status CreateBatchNormGrad(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const BatchNormSpec spec, MakeBatchNormGradSpec(info));
  RETURN_IF_ERROR(CheckHasElements(info, spec));
  const DType dtype = info.InputDType(0);
  const ChannelSpread spread(*device, spec.view, OfPiece(dtype));
  const size_t sums = info.BookScratch(spread.PartBytes(ComputeBytes(dtype)));
  const size_t maps =
      info.BookScratch(static_cast<size_t>(4 * spec.view.channels) * ComputeBytes(dtype));
  ASSIGN_OR_RETURN(
      const ChannelKernels kernels,
      ChannelKernels::Make(device, BatchNormSource(dtype, spec, spread) + kBatchGradient, spread,
                           "gradient_sums", "finish_gradient", "gradient"));
  info.SetCompute([=](KernelContext& context) -> Status {
    const ChannelView& v = spec.view;
    const void *dy = context.Input<void>(0), *x = context.Input<void>(1),
               *mean = context.Input<void>(3);
    void *of_parts = context.Scratch<void>(sums), *of_channels = context.Scratch<void>(maps);
    const auto output = [&](int i) { return spec.wanted[i] ? context.Output<void>(i) : nullptr; };
    RETURN_IF_ERROR(kernels.sums.Launch(dy, x, mean, of_parts, v.channels, v.positions,
                                        v.per_channel(), spread.parts, spread.part_n,
                                        int{Is16Aligned({dy, x})}));
    RETURN_IF_ERROR(kernels.finish.Launch(of_parts, context.Input<void>(2), mean,
                                          context.Input<void>(4), output(1), output(2), of_channels,
                                          v.channels, v.per_channel(), spread.parts));
    void* const dx = output(0);
    if (dx == nullptr) return {};
    return kernels.map.Launch(dy, x, of_channels, dx, v.elements(), v.channels, v.positions,
                              int{Is16Aligned({dy, x, dx})});
  });
  return {};
}

}  // namespace

void RegisterCudaBatchNorm(KernelRegistry& registry, const CudaDevicePtr& device) {
  auto add = [&](const char* op, const char* domain, auto create, std::vector<Alias> aliases) {
    registry.Add({.op_type = op,
                  .domain = domain,
                  .types = kFloatTypes,
                  .aliases = std::move(aliases),
                  .create = [=](KernelInfo& info) { return create(info, device); }});
  };
  add("BatchNormalization", "", CreateBatchNorm, {MayReuse(0, 0)});
  add("BatchNormalizationTraining", kCaesuraDomain, CreateBatchNormTraining, {MayReuse(0, 0)});
  add("BatchNormalizationGrad", kCaesuraDomain, CreateBatchNormGrad,
      {MayReuse(0, 0), MayReuse(1, 0)});
}

}  // namespace caesura
