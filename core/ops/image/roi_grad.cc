// SPDX-License-Identifier: Apache-2.0
// RoiAlignGrad, MaxRoiPoolGrad (core/ops).
#include <algorithm>

#include "core/base/status_macros.h"
#include "core/ops/image/roi_bins.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/factory_checks.h"
#include "core/kernels/windows/plane_sums.h"

namespace caesura {
namespace {

Status CheckInputs(const KernelInfo& info, const RoiSpec& spec) {
  for (int i = 1; i < 3; ++i) RETURN_IF_ERROR(CheckDType(info, i, {info.InputDType(0)}));
  if (info.InputShape(0) == spec.out()) return {};
  return info.Invalid("dY: expected shape " + spec.out().ToString() + ", got " +
                      info.InputShape(0).ToString());
}

// A plane of X and the sums of its gradient.
template <typename T>
struct UnpoolPlane {
  const T* x;
  Accumulator<T>* sums;
};

// One channel of one bin: a mean hands its share to all points, a maximum all of it to the corner
// that won.
template <typename T, typename A>
void UnpoolBin(const RoiSpec& spec, const RoiPoints<A>& points, int64_t bin, A gradient,
               const UnpoolPlane<T>& to) {
  A best = 0, weight = 0;
  int64_t place = -1;
  points.ForEach(bin / spec.out_width, bin % spec.out_width, [&](const RoiPoint<A>& at) {
    for (int k = 0; k < 4; ++k) {
      if (!spec.max) {
        to.sums[at.offset[k]] += at.weight[k] * gradient / points.count();
        continue;
      }
      const A value = at.weight[k] * static_cast<A>(to.x[at.offset[k]]);
      if (place >= 0 && !(value > best)) continue;
      best = value;
      weight = at.weight[k];
      place = at.offset[k];
    }
  });
  if (place >= 0) to.sums[place] += weight * gradient;
}

// Calls fn(first channel, last channel) over disjoint ranges on some threads, after zeroing their
// planes.
template <typename A, typename Fn>
void ForChannels(const RoiSpec& spec, A* sums, Fn fn) {
  ParallelFor(spec.threads, spec.channels, 1, [&](int64_t first, int64_t last) {
    for (int64_t n = 0; n < spec.batches; ++n) {
      A* from = sums + (n * spec.channels + first) * spec.plane();
      std::fill(from, from + (last - first) * spec.plane(), A(0));
    }
    fn(first, last);
  });
}

template <typename T>
void UnalignRois(const RoiSpec& spec, KernelContext& context, Accumulator<T>* sums) {
  using A = Accumulator<T>;
  const T *dy = context.Input<T>(0), *x = context.Input<T>(1), *rois = context.Input<T>(2);
  const int64_t* batches = context.Input<int64_t>(3);
  ForChannels(spec, sums, [&](int64_t first, int64_t last) {
    for (int64_t r = 0; r < spec.rois; ++r) {
      const RoiPoints<A> points(spec, rois + r * 4);
      for (int64_t c = first; c < last; ++c) {
        const int64_t plane = (batches[r] * spec.channels + c) * spec.plane();
        const T* gradients = dy + (r * spec.channels + c) * spec.out_plane();
        for (int64_t bin = 0; bin < spec.out_plane(); ++bin) {
          UnpoolBin<T>(spec, points, bin, static_cast<A>(gradients[bin]),
                       {x + plane, sums + plane});
        }
      }
    }
  });
}

Status CreateRoiAlignGrad(KernelInfo& info) {
  ASSIGN_OR_RETURN(const RoiSpec spec, MakeRoiAlignSpec(info, 1, 2, 3));
  RETURN_IF_ERROR(CheckInputs(info, spec));
  info.SetOutput(0, info.InputDType(0), info.InputShape(1));
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const PlaneSums<T> planes(info, info.InputShape(1).elements());
    info.SetCompute([spec, planes, label = info.node().Label()](KernelContext& context) -> Status {
      const int64_t* batches = context.Input<int64_t>(3);
      for (int64_t r = 0; r < spec.rois; ++r)
        RETURN_IF_ERROR(CheckRoiBatch(batches[r], spec, label));
      UnalignRois<T>(spec, context, planes.Sums(context));
      planes.Store(context);
      return {};
    });
  });
  return {};
}

template <typename T>
int64_t BatchOf(const T* roi) {
  const double number = static_cast<double>(roi[0]);
  return number >= 0 && number < 0x1p40 ? static_cast<int64_t>(number) : -1;
}

template <typename T>
void UnpoolRois(const RoiSpec& spec, KernelContext& context, Accumulator<T>* sums) {
  const T *dy = context.Input<T>(0), *x = context.Input<T>(1), *rois = context.Input<T>(2);
  ForChannels(spec, sums, [&](int64_t first, int64_t last) {
    for (int64_t r = 0; r < spec.rois; ++r) {
      const int64_t batch = BatchOf(rois + r * 5);
      for (int64_t bin = 0; bin < spec.out_plane(); ++bin) {
        const RoiBin at =
            RoiBin::Of(spec, rois + r * 5, bin / spec.out_width, bin % spec.out_width);
        for (int64_t c = first; c < last; ++c) {
          const int64_t plane = (batch * spec.channels + c) * spec.plane();
          const int64_t place = at.Largest(x + plane, spec.width);
          if (place < 0) continue;
          sums[plane + place] +=
              static_cast<Accumulator<T>>(dy[(r * spec.channels + c) * spec.out_plane() + bin]);
        }
      }
    }
  });
}

Status CreateMaxRoiPoolGrad(KernelInfo& info) {
  ASSIGN_OR_RETURN(const RoiSpec spec, MakeMaxRoiPoolSpec(info, 1, 2));
  RETURN_IF_ERROR(CheckInputs(info, spec));
  info.SetOutput(0, info.InputDType(0), info.InputShape(1));
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const PlaneSums<T> planes(info, info.InputShape(1).elements());
    info.SetCompute([spec, planes, label = info.node().Label()](KernelContext& context) -> Status {
      const T* rois = context.Input<T>(2);
      for (int64_t r = 0; r < spec.rois; ++r)
        RETURN_IF_ERROR(CheckRoiBatch(BatchOf(rois + r * 5), spec, label));
      UnpoolRois<T>(spec, context, planes.Sums(context));
      planes.Store(context);
      return {};
    });
  });
  return {};
}

}  // namespace

void RegisterRoiGrad(KernelRegistry& registry) {
  const char* domain = kCaesuraDomain;
  registry.Add({.op_type = "RoiAlignGrad",
                .domain = domain,
                .types = kFloatTypes,
                .create = CreateRoiAlignGrad});
  registry.Add({.op_type = "MaxRoiPoolGrad",
                .domain = domain,
                .types = kFloatTypes,
                .create = CreateMaxRoiPoolGrad});
}

}  // namespace caesura
