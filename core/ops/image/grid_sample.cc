// SPDX-License-Identifier: Apache-2.0
// GridSample over 1 to 4 spatial axes, and AffineGrid.
#include <algorithm>

#include "core/base/status_macros.h"
#include "core/ops/image/grid_sampler.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

Result<GridOptions> ReadGridOptions(const KernelInfo& info) {
  const std::string mode = info.Attr<std::string>("mode", "linear");
  const std::string padding = info.Attr<std::string>("padding_mode", "zeros");
  GridOptions out;
  out.align_corners = info.Attr<int64_t>("align_corners", 0) != 0;
  if (mode == "nearest") {
    out.mode = GridOptions::Mode::kNearest;
  } else if (mode == "cubic" || mode == "bicubic") {
    out.mode = GridOptions::Mode::kCubic;
  } else if (mode != "linear" && mode != "bilinear") {
    return info.Invalid("mode: expected linear, nearest or cubic, got " + mode);
  }
  if (padding == "border") {
    out.padding = GridOptions::Padding::kBorder;
  } else if (padding == "reflection") {
    out.padding = GridOptions::Padding::kReflection;
  } else if (padding != "zeros") {
    return info.Invalid("padding_mode: expected zeros, border or reflection, got " + padding);
  }
  return out;
}

}  // namespace

Result<GridSpec> MakeGridSpec(const KernelInfo& info, const Shape& x, const Shape& grid) {
  GridSpec spec;
  ASSIGN_OR_RETURN(spec.options, ReadGridOptions(info));
  const int rank = x.rank() - 2;
  if (rank < 1 || grid.rank() != x.rank() || grid[grid.rank() - 1] != rank || grid[0] != x[0]) {
    return info.Invalid("grid " + grid.ToString() + " does not go with X " + x.ToString());
  }
  if (rank > kMaxGridAxes)
    return info.Refuse("samples at most 4 spatial axes, got " + std::to_string(rank));
  spec.dims.assign(x.begin() + 2, x.end());
  spec.strides = Shape(spec.dims).Strides();
  spec.threads = info.threads();
  spec.batches = x[0];
  spec.channels = x[1];
  spec.plane = x.Elements(2, x.rank());
  spec.places = grid.Elements(1, grid.rank() - 1);
  std::vector<int64_t> dims = {x[0], x[1]};
  dims.insert(dims.end(), grid.begin() + 1, grid.end() - 1);
  ASSIGN_OR_RETURN(spec.out, CheckDims(info, std::move(dims), info.InputDType(0)));
  if (spec.plane == 0 && spec.out.elements() > 0) return info.Invalid("X has no element to sample");
  return spec;
}

namespace {

constexpr int64_t kPlaceBlock = 8;

// Cells of a few places at a time, used for all channels.
template <typename T, typename A>
void SampleGrid(const GridSpec& spec, GridReader<A> read, const T* x, const void* grid, T* y) {
  const int64_t rank = static_cast<int64_t>(spec.dims.size());
  const int64_t blocks = (spec.places + kPlaceBlock - 1) / kPlaceBlock;
  const int64_t grain = std::max<int64_t>(1, kParallelGrain / (32 * (spec.channels + 4)));
  ParallelFor(spec.threads, spec.batches * blocks, grain, [&](int64_t first, int64_t last) {
    const GridSampler<A> sampler(spec);
    GridCell<A> cells[kPlaceBlock];
    for (int64_t item = first; item < last; ++item) {
      const int64_t n = item / blocks, begin = item % blocks * kPlaceBlock;
      const int64_t count = std::min(kPlaceBlock, spec.places - begin);
      for (int64_t p = 0; p < count; ++p) {
        A at[kMaxGridAxes];
        for (int64_t d = 0; d < rank; ++d)
          at[d] = read(grid, (n * spec.places + begin + p) * rank + d);
        sampler.Locate(at, false, cells[p]);
      }
      for (int64_t c = 0; c < spec.channels; ++c) {
        const T* plane = x + (n * spec.channels + c) * spec.plane;
        T* out = y + (n * spec.channels + c) * spec.places + begin;
        for (int64_t p = 0; p < count; ++p) {
          A sum = 0;
          for (int k = 0; k < cells[p].count; ++k) {
            sum += cells[p].weight[k] * static_cast<A>(plane[cells[p].offset[k]]);
          }
          out[p] = static_cast<T>(sum);
        }
      }
    }
  });
}

Status CreateGridSample(KernelInfo& info) {
  ASSIGN_OR_RETURN(const GridSpec spec, MakeGridSpec(info, info.InputShape(0), info.InputShape(1)));
  RETURN_IF_ERROR(CheckDType(info, 1, kFloatTypes));
  info.SetOutput(0, info.InputDType(0), spec.out);
  const bool known = DispatchNumeric(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = std::conditional_t<std::is_integral_v<T>, double, Accumulator<T>>;
    const GridReader<A> read = GridReaderOf<A>(info.InputDType(1));
    info.SetCompute([spec, read](KernelContext& context) {
      SampleGrid<T, A>(spec, read, context.Input<T>(0), context.Input<void>(1),
                       context.Output<T>(0));
    });
  });
  return known ? Status()
               : info.Refuse(std::string("does not sample ") + DTypeName(info.InputDType(0)));
}

// The place of index i on an axis of `count` evenly spaced ones from -1 to 1. A single one between
// corners is at -1: the schema's function says so of a depth of 1, ONNX's reference of all axes.
double GridPosition(int64_t i, int64_t count, bool align_corners) {
  const double at = static_cast<double>(i), n = static_cast<double>(count);
  if (!align_corners) return (2 * at + 1) / n - 1;
  return count <= 1 ? -1 : 2 * at / (n - 1) - 1;
}

// theta [N, r, r + 1]; y [N, places, r], coordinates innermost axis first.
template <typename T>
void FillAffineGrid(const Shape& spatial, int64_t batches, bool align_corners, const T* theta,
                    T* y) {
  const int rank = spatial.rank();
  const int64_t places = spatial.elements();
  const std::vector<int64_t>& dims = spatial.dims();
  for (int64_t n = 0; n < batches; ++n, theta += rank * (rank + 1)) {
    for (int64_t p = 0; p < places; ++p) {
      double at[3];
      int64_t rest = p;
      for (int a = rank - 1; a >= 0; --a) {
        at[rank - 1 - a] = GridPosition(rest % dims[a], dims[a], align_corners);
        rest /= dims[a];
      }
      for (int r = 0; r < rank; ++r) {
        const T* row = theta + r * (rank + 1);
        double sum = static_cast<double>(row[rank]);
        for (int k = 0; k < rank; ++k) sum += static_cast<double>(row[k]) * at[k];
        *y++ = static_cast<T>(sum);
      }
    }
  }
}

Status CreateAffineGrid(KernelInfo& info) {
  const Shape& theta = info.InputShape(0);
  const std::vector<int64_t> size = info.HostInts(1);
  const int64_t rank = static_cast<int64_t>(size.size()) - 2;
  if ((rank != 2 && rank != 3) || theta != Shape{size[0], rank, rank + 1}) {
    return info.Invalid("theta " + theta.ToString() + " does not go with size " +
                        Shape(size).ToString());
  }
  std::vector<int64_t> dims = {size[0]};
  dims.insert(dims.end(), size.begin() + 2, size.end());
  const Shape spatial(std::vector<int64_t>(size.begin() + 2, size.end()));
  dims.push_back(rank);
  ASSIGN_OR_RETURN(Shape out, CheckDims(info, std::move(dims), info.InputDType(0)));
  info.SetOutput(0, info.InputDType(0), std::move(out));
  const bool align_corners = info.Attr<int64_t>("align_corners", 0) != 0;
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([spatial, batches = size[0], align_corners](KernelContext& context) {
      FillAffineGrid(spatial, batches, align_corners, context.Input<T>(0), context.Output<T>(0));
    });
  });
  return {};
}

}  // namespace

void RegisterGridSample(KernelRegistry& registry) {
  registry.Add({.op_type = "GridSample", .create = CreateGridSample});
  registry.Add({.op_type = "AffineGrid",
                .types = kFloatTypes,
                .host_inputs = {1},
                .create = CreateAffineGrid});
}

}  // namespace caesura
