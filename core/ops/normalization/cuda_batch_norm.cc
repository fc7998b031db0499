// SPDX-License-Identifier: Apache-2.0
// BatchNormalization, BatchNormalizationTraining and BatchNormalizationGrad (ai.caesura). A
// channel's elements are in parts: a block sums a part of one channel (of 32 channels where they
// lie side by side), a warp merges the parts of a channel in double, and an elementwise kernel maps
// all elements. Sums of float32 and halves are in float32, their order depends on the shape and the
// device only.
#include "core/cuda/cuda_source.h"
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/walks/batch_norm_spec.h"

namespace caesura {
namespace {

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

std::string BatchNormMacros(DType dtype, const BatchNormSpec& spec, const ChannelSpread& spread) {
  return CudaMacros({{"S_TYPE", CudaStorageType(dtype)},
                     {"C_TYPE", CudaComputeType(dtype)},
                     {"P_TYPE", CudaStorageType(spec.parameter_type)},
                     {"PC_TYPE", CudaComputeType(spec.parameter_type)},
                     {"R_TYPE", CudaStorageType(spec.stat_type)},
                     {"RC_TYPE", CudaComputeType(spec.stat_type)},
                     // Divisions of 32 bits take a fraction of the time.
                     {"INDEX_TYPE", spec.view.elements() < int64_t{1} << 31 ? "unsigned" : "i64"},
                     {"LANES", std::to_string(spread.lanes)},
                     {"THREADS", std::to_string(spread.threads)},
                     {"WIDE", std::to_string(spread.wide)},
                     {"MAPPED", std::to_string(spread.mapped)},
                     {"SIDE_BY_SIDE", std::to_string(spread.side_by_side)},
                     {"SQRT", dtype == DType::kFloat64 ? "sqrt" : "sqrtf"}});
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
      ChannelKernels::Make(device,
                           BatchNormMacros(dtype, spec, spread) +
                               CudaInclude("core/ops/normalization/batch_norm_moments.cuh") +
                               CudaInclude("core/ops/normalization/batch_norm_map.cuh"),
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
                   CudaKernel::Make(device,
                                    BatchNormMacros(dtype, spec, spread) +
                                        CudaInclude("core/ops/normalization/batch_norm_map.cuh"),
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
      ChannelKernels::Make(device,
                           BatchNormMacros(dtype, spec, spread) +
                               CudaInclude("core/ops/normalization/batch_norm_gradient.cuh"),
                           spread, "gradient_sums", "finish_gradient", "gradient"));
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
