// SPDX-License-Identifier: Apache-2.0
// Which elements GridSample reads for one place of the grid, with what weights, and how the weights
// change with the grid (ONNX GridSample-22, reference implementation); shared with GridSampleGrad.
#ifndef CAESURA_CORE_OPS_IMAGE_GRID_SAMPLER_H_
#define CAESURA_CORE_OPS_IMAGE_GRID_SAMPLER_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/kernels/kernel.h"

namespace caesura {

struct GridOptions {
  enum class Mode { kNearest, kLinear, kCubic };
  enum class Padding { kZeros, kBorder, kReflection };
  Mode mode = Mode::kLinear;
  Padding padding = Padding::kZeros;
  bool align_corners = false;
};

// X [N, C, spatial...], grid [N, places..., r] with r spatial axes.
struct GridSpec {
  GridOptions options;
  std::vector<int64_t> dims, strides;  // of the spatial axes of X
  int64_t batches = 0, channels = 0, plane = 0, places = 0;
  int threads = 1;
  Shape out;
};

inline constexpr int kMaxGridAxes = 4;
inline constexpr int kMaxGridTaps = 256;  // 4 taps (cubic) on each of 4 axes

Result<GridSpec> MakeGridSpec(const KernelInfo& info, const Shape& x, const Shape& grid);

// Reads element i of a float tensor of any width.
template <typename A>
using GridReader = A (*)(const void*, int64_t);

// Null for dtypes that are no floats.
template <typename A>
GridReader<A> GridReaderOf(DType dtype) {
  GridReader<A> reader = nullptr;
  DispatchFloat(dtype, [&](auto tag) {
    using G = typename decltype(tag)::type;
    reader = [](const void* data, int64_t i) {
      return static_cast<A>(static_cast<const G*>(data)[i]);
    };
  });
  return reader;
}

// The elements that one place reads: offsets within a plane of X, their weights, and the weights'
// derivatives by each grid coordinate (in X's axis order).
template <typename A>
struct GridCell {
  int count = 0;
  int64_t offset[kMaxGridTaps];
  A weight[kMaxGridTaps];
  A slope[kMaxGridAxes][kMaxGridTaps];
};

template <typename A>
class GridSampler {
 public:
  explicit GridSampler(const GridSpec& spec)
      : spec_(spec), rank_(static_cast<int>(spec.dims.size())) {}

  // `coordinates`: the grid's r numbers, innermost axis of X first. Fills the slopes only when
  // asked.
  void Locate(const A* coordinates, bool slopes, GridCell<A>& cell) const {
    AxisSample axes[kMaxGridAxes];
    for (int a = 0; a < rank_; ++a) axes[a] = SampleAxis(coordinates[rank_ - 1 - a], spec_.dims[a]);
    cell.count = 0;
    Combine(axes, slopes, cell);
  }

 private:
  struct AxisSample {
    int count = 0;
    int64_t index[4];
    A weight[4];
    A slope[4];
  };
  using Mode = GridOptions::Mode;
  using Padding = GridOptions::Padding;

  static A Reflect(A x, A low, A high, A& sign) {
    const A span = high - low;
    if (span <= 0) {
      sign = 0;
      return low;
    }
    const bool under = x < low;
    const A distance = under ? low - x : x - high;
    const A turns = std::floor(distance / span), rest = distance - turns * span;
    const bool even = std::fmod(turns, A(2)) == 0;
    // An even number of turns comes back from the border that was crossed.
    const bool from_low = under == even;
    sign = even ? A(-1) : A(1);
    return from_low ? low + rest : high - rest;
  }

  A Low() const { return spec_.options.align_corners ? A(0) : A(-0.5); }
  A High(int64_t length) const { return Low() == 0 ? A(length - 1) : A(length) - A(0.5); }

  // Pixel coordinate of a grid number, brought inside as the padding says; `gain` is its
  // derivative.
  A Coordinate(A n, int64_t length, A& gain) const {
    const bool corners = spec_.options.align_corners;
    gain = corners ? A(length - 1) / 2 : A(length) / 2;
    A x = corners ? (n + 1) / 2 * A(length - 1) : ((n + 1) * A(length) - 1) / 2;
    const A limit = A(1 << 30);
    if (!(x > -limit)) x = -limit;  // NaN too: far outside
    if (x > limit) x = limit;
    if (spec_.options.mode == Mode::kNearest) x = std::nearbyint(x);
    if (x >= Low() && x <= High(length)) return x;
    if (spec_.options.padding == Padding::kBorder) {
      gain = 0;
      return x < 0 ? A(0) : A(length - 1);
    }
    if (spec_.options.padding == Padding::kReflection) {
      A sign;
      x = Reflect(x, Low(), High(length), sign);
      gain *= sign;
    }
    return x;
  }

  // The element that stands for pixel i, or -1 for zero.
  int64_t Pixel(int64_t i, int64_t length) const {
    if (i >= 0 && i < length) return i;
    if (spec_.options.padding == Padding::kZeros) return -1;
    A sign, x = A(i);
    if (spec_.options.padding == Padding::kReflection) x = Reflect(x, Low(), High(length), sign);
    const int64_t pixel = static_cast<int64_t>(x);
    return pixel < 0 ? 0 : pixel >= length ? length - 1 : pixel;
  }

  AxisSample SampleAxis(A n, int64_t length) const {
    AxisSample out;
    A gain;
    const A x = Coordinate(n, length, gain);
    const int64_t low = static_cast<int64_t>(std::floor(x));
    const A t = x - static_cast<A>(low);
    A weight[4], slope[4];
    int64_t first = low;
    int count = 1;
    if (spec_.options.mode == Mode::kNearest) {
      weight[0] = 1;
      slope[0] = 0;
      first = static_cast<int64_t>(x);
    } else if (spec_.options.mode == Mode::kLinear) {
      count = 2;
      weight[0] = 1 - t;
      weight[1] = t;
      slope[0] = -1;
      slope[1] = 1;
    } else {
      count = 4;
      first = low - 1;
      for (int k = 0; k < 4; ++k) Cubic(A(k - 1) - t, weight[k], slope[k]);
    }
    for (int k = 0; k < count; ++k) {
      const int64_t pixel = Pixel(first + k, length);
      if (pixel < 0) continue;
      out.index[out.count] = pixel;
      out.weight[out.count] = weight[k];
      out.slope[out.count++] = slope[k] * gain;
    }
    return out;
  }

  // Keys' kernel with a = -0.75 at the distance d = pixel - x, and its derivative by x.
  static void Cubic(A d, A& weight, A& slope) {
    const A a = A(-0.75), s = std::abs(d), direction = d > 0 ? A(-1) : A(1);
    if (s <= 1) {
      weight = ((a + 2) * s - (a + 3)) * s * s + 1;
      slope = (3 * (a + 2) * s - 2 * (a + 3)) * s * direction;
    } else {
      weight = ((a * s - 5 * a) * s + 8 * a) * s - 4 * a;
      slope = ((3 * a * s - 10 * a) * s + 8 * a) * direction;
    }
  }

  // The outer product of the axes' taps.
  void Combine(const AxisSample* axes, bool slopes, GridCell<A>& cell) const {
    int place[kMaxGridAxes] = {0, 0, 0, 0};
    for (int a = 0; a < rank_; ++a) {
      if (axes[a].count == 0) return;
    }
    while (true) {
      int64_t offset = 0;
      A weight = 1;
      for (int a = 0; a < rank_; ++a) {
        offset += axes[a].index[place[a]] * spec_.strides[a];
        weight *= axes[a].weight[place[a]];
      }
      for (int d = 0; slopes && d < rank_; ++d) {
        A slope = 1;
        for (int a = 0; a < rank_; ++a)
          slope *= a == d ? axes[a].slope[place[a]] : axes[a].weight[place[a]];
        cell.slope[d][cell.count] = slope;
      }
      cell.offset[cell.count] = offset;
      cell.weight[cell.count++] = weight;
      int a = rank_ - 1;
      while (a >= 0 && ++place[a] == axes[a].count) place[a--] = 0;
      if (a < 0) return;
    }
  }

  const GridSpec& spec_;
  int rank_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_IMAGE_GRID_SAMPLER_H_
