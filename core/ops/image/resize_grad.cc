// SPDX-License-Identifier: Apache-2.0
// ResizeGrad, GridSampleGrad (core/ops), and the registration of roi_grad.cc.
#include <algorithm>

#include "core/base/status_macros.h"
#include "core/ops/image/grid_sampler.h"
#include "core/ops/image/resize_spec.h"
#include "core/kernels/walks/tap_chain.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/factory_checks.h"
#include "core/kernels/windows/plane_sums.h"

namespace caesura {
namespace {

Status CheckGradientShape(const KernelInfo& info, const Shape& expected) {
  if (info.InputShape(0) == expected) return {};
  return info.Invalid("dY: expected shape " + expected.ToString() + ", got " +
                      info.InputShape(0).ToString());
}

Status CreateResizeGrad(KernelInfo& info) {
  ASSIGN_OR_RETURN(const Shape shape, CheckDims(info, info.HostInts(1), info.InputDType(0)));
  ASSIGN_OR_RETURN(const ResizeSpec plan, MakeResizePlan(info, shape, {2, 3, 4}));
  RETURN_IF_ERROR(CheckGradientShape(info, plan.out));
  info.SetOutput(0, info.InputDType(0), shape);
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const TapChain<T, Accumulator<T>> chain(info, shape, plan.axes, true, 0);
    info.SetCompute([chain](KernelContext& context) { chain.Run(context); });
  });
  return {};
}

template <typename A>
void ReadPlace(const GridSpec& spec, GridReader<A> read, const void* grid, int64_t place, A* at) {
  const int64_t rank = static_cast<int64_t>(spec.dims.size());
  for (int64_t d = 0; d < rank; ++d) at[d] = read(grid, place * rank + d);
}

// dX: each place adds its weighted dY to the elements that it read; planes apart, so that no two
// threads meet.
template <typename T>
void AddToSampled(const GridSpec& spec, const T* dy, const void* grid, Accumulator<T>* sums) {
  using A = Accumulator<T>;
  const GridReader<A> read = GridReaderOf<A>(kDTypeOf<T>);
  const int64_t block = std::max<int64_t>(1, (spec.channels + spec.threads - 1) / spec.threads);
  const int64_t blocks = (spec.channels + block - 1) / block;
  ParallelFor(spec.threads, spec.batches * blocks, 1, [&](int64_t first, int64_t last) {
    const GridSampler<A> sampler(spec);
    GridCell<A> cell;
    A at[kMaxGridAxes];
    for (int64_t item = first; item < last; ++item) {
      const int64_t n = item / blocks, channel = item % blocks * block;
      const int64_t begin = n * spec.channels + channel,
                    end = std::min(begin + block, (n + 1) * spec.channels);
      std::fill(sums + begin * spec.plane, sums + end * spec.plane, A(0));
      for (int64_t p = 0; p < spec.places; ++p) {
        ReadPlace(spec, read, grid, n * spec.places + p, at);
        sampler.Locate(at, false, cell);
        for (int64_t c = begin; c < end; ++c) {
          const A gradient = static_cast<A>(dy[c * spec.places + p]);
          for (int k = 0; k < cell.count; ++k)
            sums[c * spec.plane + cell.offset[k]] += cell.weight[k] * gradient;
        }
      }
    }
  });
}

// dgrid: how the sampled values change as the place moves.
template <typename T>
void SumSlopes(const GridSpec& spec, const T* dy, const T* x, const T* grid, T* dgrid) {
  using A = Accumulator<T>;
  const GridReader<A> read = GridReaderOf<A>(kDTypeOf<T>);
  const int rank = static_cast<int>(spec.dims.size());
  const int64_t grain = std::max<int64_t>(1, kParallelGrain / (64 * (spec.channels + 1)));
  ParallelFor(spec.threads, spec.batches * spec.places, grain, [&](int64_t first, int64_t last) {
    const GridSampler<A> sampler(spec);
    GridCell<A> cell;
    A at[kMaxGridAxes];
    for (int64_t item = first; item < last; ++item) {
      const int64_t n = item / spec.places, p = item % spec.places;
      ReadPlace<A>(spec, read, grid, item, at);
      sampler.Locate(at, true, cell);
      A sums[kMaxGridAxes] = {};
      for (int64_t c = n * spec.channels; c < (n + 1) * spec.channels; ++c) {
        const T* plane = x + c * spec.plane;
        const A gradient = static_cast<A>(dy[c * spec.places + p]);
        for (int k = 0; k < cell.count; ++k) {
          const A part = gradient * static_cast<A>(plane[cell.offset[k]]);
          for (int d = 0; d < rank; ++d) sums[d] += part * cell.slope[d][k];
        }
      }
      for (int d = 0; d < rank; ++d) dgrid[item * rank + rank - 1 - d] = static_cast<T>(sums[d]);
    }
  });
}

Status CreateGridSampleGrad(KernelInfo& info) {
  const Shape &x = info.InputShape(1), &grid = info.InputShape(2);
  ASSIGN_OR_RETURN(const GridSpec spec, MakeGridSpec(info, x, grid));
  RETURN_IF_ERROR(CheckGradientShape(info, spec.out));
  for (int i = 1; i < 3; ++i) RETURN_IF_ERROR(CheckDType(info, i, {info.InputDType(0)}));
  info.SetOutput(0, info.InputDType(0), x);
  info.SetOutput(1, info.InputDType(0), grid);
  const bool wants_dx = info.HasOutput(0), wants_dgrid = info.HasOutput(1);
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const PlaneSums<T> planes(info, wants_dx ? x.elements() : 0);
    info.SetCompute([spec, planes, wants_dx, wants_dgrid](KernelContext& context) {
      const T *dy = context.Input<T>(0), *at = context.Input<T>(2);
      if (wants_dx) {
        AddToSampled(spec, dy, at, planes.Sums(context));
        planes.Store(context);
      }
      if (wants_dgrid) SumSlopes(spec, dy, context.Input<T>(1), at, context.Output<T>(1));
    });
  });
  return {};
}

}  // namespace

void RegisterResizeGrad(KernelRegistry& registry) {
  const char* domain = kCaesuraDomain;
  registry.Add({.op_type = "ResizeGrad",
                .domain = domain,
                .types = kFloatTypes,
                .host_inputs = {-2},
                .create = CreateResizeGrad});
  registry.Add({.op_type = "GridSampleGrad",
                .domain = domain,
                .types = kFloatTypes,
                .create = CreateGridSampleGrad});
}

}  // namespace caesura
