// SPDX-License-Identifier: Apache-2.0
// Pooling over regions of interest: RoiAlign and MaxRoiPool.
#include "core/base/status_macros.h"
#include "core/ops/image/roi_bins.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

Result<RoiSpec> MakeRoiSpec(const KernelInfo& info, int x, int rois, int64_t roi_columns) {
  RETURN_IF_ERROR(CheckRank(info, x, 4));
  const Shape &shape = info.InputShape(x), &regions = info.InputShape(rois);
  if (regions.rank() != 2 || regions[1] != roi_columns ||
      info.InputDType(rois) != info.InputDType(x)) {
    return info.Invalid("rois: expected [count, " + std::to_string(roi_columns) +
                        "] of X's type, got " + DTypeName(info.InputDType(rois)) +
                        regions.ToString());
  }
  RoiSpec spec = {};
  spec.threads = info.threads();
  spec.batches = shape[0];
  spec.channels = shape[1];
  spec.height = shape[2];
  spec.width = shape[3];
  spec.rois = regions[0];
  spec.scale = info.Attr<float>("spatial_scale", 1.0f);
  if (spec.plane() == 0) return info.Invalid("X has no element to pool");
  return spec;
}

Status CheckOutSize(const KernelInfo& info, const RoiSpec& spec) {
  if (spec.out_height <= 0 || spec.out_width <= 0)
    return info.Invalid("output size: expected positive numbers");
  return CheckDims(info, spec.out().dims(), DType::kFloat64).status();
}

}  // namespace

Result<RoiSpec> MakeRoiAlignSpec(const KernelInfo& info, int x, int rois, int batch_indices) {
  ASSIGN_OR_RETURN(RoiSpec spec, MakeRoiSpec(info, x, rois, 4));
  RETURN_IF_ERROR(CheckDType(info, batch_indices, {DType::kInt64}));
  if (info.InputShape(batch_indices) != Shape{spec.rois})
    return info.Invalid("batch_indices: expected one a region");
  spec.out_height = info.Attr<int64_t>("output_height", 1);
  spec.out_width = info.Attr<int64_t>("output_width", 1);
  spec.sampling = info.Attr<int64_t>("sampling_ratio", 0);
  const int version = info.node().since_version();
  const bool old =
      info.node().Is("RoiAlign") && version > 0 && version < 16;  // had no coordinate mode
  const std::string mode = info.Attr<std::string>("mode", "avg");
  const std::string coordinates = info.Attr<std::string>("coordinate_transformation_mode",
                                                         old ? "output_half_pixel" : "half_pixel");
  if ((mode != "avg" && mode != "max") ||
      (coordinates != "half_pixel" && coordinates != "output_half_pixel")) {
    return info.Invalid("mode, coordinate_transformation_mode: no such value");
  }
  spec.max = mode == "max";
  spec.half_pixel = coordinates == "half_pixel";
  RETURN_IF_ERROR(CheckOutSize(info, spec));
  return spec;
}

Result<RoiSpec> MakeMaxRoiPoolSpec(const KernelInfo& info, int x, int rois) {
  ASSIGN_OR_RETURN(RoiSpec spec, MakeRoiSpec(info, x, rois, 5));
  const auto pooled = info.Attr<std::vector<int64_t>>("pooled_shape", {});
  if (pooled.size() != 2) return info.Invalid("pooled_shape: expected height and width");
  spec.out_height = pooled[0];
  spec.out_width = pooled[1];
  RETURN_IF_ERROR(CheckOutSize(info, spec));
  return spec;
}

namespace {

constexpr int64_t kChannelBlock = 64;

// A bin of a block of at most kChannelBlock channels.
struct BinPlace {
  int64_t bin, channels;
};

// One bin of a block of channels. Max mode takes the largest weighted corner of all points, as ONNX
// has it.
template <typename T, typename A>
void PoolBin(const RoiSpec& spec, const RoiPoints<A>& points, const BinPlace& place, const T* x,
             T* y) {
  A sums[kChannelBlock] = {};
  const int64_t h = place.bin / spec.out_width, w = place.bin % spec.out_width;
  bool first = true;
  points.ForEach(h, w, [&](const RoiPoint<A>& at) {
    for (int64_t c = 0; c < place.channels; ++c) {
      const T* plane = x + c * spec.plane();
      A parts[4];
      for (int k = 0; k < 4; ++k) parts[k] = at.weight[k] * static_cast<A>(plane[at.offset[k]]);
      if (spec.max) {
        const A largest = std::max(std::max(parts[0], parts[1]), std::max(parts[2], parts[3]));
        sums[c] = first ? largest : std::max(sums[c], largest);
      } else {
        sums[c] += parts[0] + parts[1] + parts[2] + parts[3];
      }
    }
    first = false;
  });
  const A divisor = spec.max ? A(1) : points.count();
  for (int64_t c = 0; c < place.channels; ++c)
    y[c * spec.out_plane()] = static_cast<T>(sums[c] / divisor);
}

template <typename T>
void AlignRois(const RoiSpec& spec, const T* x, const T* rois, const int64_t* batches, T* y) {
  using A = Accumulator<T>;
  const int64_t blocks = (spec.channels + kChannelBlock - 1) / kChannelBlock;
  ParallelFor(spec.threads, spec.rois * blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t item = first; item < last; ++item) {
      const int64_t r = item / blocks, channel = item % blocks * kChannelBlock;
      const RoiPoints<A> points(spec, rois + r * 4);
      const T* from = x + (batches[r] * spec.channels + channel) * spec.plane();
      T* to = y + (r * spec.channels + channel) * spec.out_plane();
      const int64_t channels = std::min(kChannelBlock, spec.channels - channel);
      for (int64_t bin = 0; bin < spec.out_plane(); ++bin)
        PoolBin(spec, points, {bin, channels}, from, to + bin);
    }
  });
}

Status CreateRoiAlign(KernelInfo& info) {
  ASSIGN_OR_RETURN(const RoiSpec spec, MakeRoiAlignSpec(info, 0, 1, 2));
  info.SetOutput(0, info.InputDType(0), spec.out());
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([spec, label = info.node().Label()](KernelContext& context) -> Status {
      const int64_t* batches = context.Input<int64_t>(2);
      for (int64_t r = 0; r < spec.rois; ++r)
        RETURN_IF_ERROR(CheckRoiBatch(batches[r], spec, label));
      AlignRois(spec, context.Input<T>(0), context.Input<T>(1), batches, context.Output<T>(0));
      return {};
    });
  });
  return {};
}

template <typename T>
Status PoolRois(const RoiSpec& spec, const T* x, const T* rois, T* y, const std::string& label) {
  for (int64_t r = 0; r < spec.rois; ++r, rois += 5) {
    const double number = static_cast<double>(rois[0]);
    const int64_t batch = number >= 0 && number < 0x1p40 ? static_cast<int64_t>(number) : -1;
    RETURN_IF_ERROR(CheckRoiBatch(batch, spec, label));
    for (int64_t bin = 0; bin < spec.out_plane(); ++bin) {
      const RoiBin at = RoiBin::Of(spec, rois, bin / spec.out_width, bin % spec.out_width);
      for (int64_t c = 0; c < spec.channels; ++c) {
        const T* plane = x + (batch * spec.channels + c) * spec.plane();
        const int64_t place = at.Largest(plane, spec.width);
        y[(r * spec.channels + c) * spec.out_plane() + bin] = place < 0 ? T(0) : plane[place];
      }
    }
  }
  return {};
}

Status CreateMaxRoiPool(KernelInfo& info) {
  ASSIGN_OR_RETURN(const RoiSpec spec, MakeMaxRoiPoolSpec(info, 0, 1));
  info.SetOutput(0, info.InputDType(0), spec.out());
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([spec, label = info.node().Label()](KernelContext& context) {
      return PoolRois(spec, context.Input<T>(0), context.Input<T>(1), context.Output<T>(0), label);
    });
  });
  return {};
}

}  // namespace

void RegisterRoi(KernelRegistry& registry) {
  registry.Add({.op_type = "RoiAlign", .types = kFloatTypes, .create = CreateRoiAlign});
  registry.Add({.op_type = "MaxRoiPool", .types = kFloatTypes, .create = CreateMaxRoiPool});
}

}  // namespace caesura
