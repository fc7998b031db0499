// SPDX-License-Identifier: Apache-2.0
// Where a deformable convolution looks: each tap of each output reads X at a fractional place, by
// linear interpolation between the corners of its cell; places outside X are zero.
#ifndef CAESURA_CORE_OPS_CONV_DEFORM_WINDOW_H_
#define CAESURA_CORE_OPS_CONV_DEFORM_WINDOW_H_

#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/windows/conv_geometry.h"

namespace caesura {

inline constexpr int kMaxDeformAxes = 3;

struct DeformGeometry {
  ConvGeometry conv;
  int64_t offset_groups = 1;

  int axes() const { return conv.window.rank(); }
  int64_t taps() const { return conv.window.KernelCount(); }
  int64_t positions() const { return conv.window.OutputCount(); }
  // Elements of one image of X, of the columns of one image, of its offsets and of its mask.
  int64_t x_step() const { return conv.channels * conv.window.InputCount(); }
  int64_t column_count() const { return conv.channels * taps() * positions(); }
  int64_t offset_step() const { return offset_groups * taps() * axes() * positions(); }
  int64_t mask_step() const { return offset_groups * taps() * positions(); }
};

// Inputs X, W, offset, B?, mask? from input `first` on.
inline Result<DeformGeometry> MakeDeformGeometry(const KernelInfo& info, int first) {
  DeformGeometry g;
  ASSIGN_OR_RETURN(g.conv,
                   MakeConvGeometry(info, info.InputShape(first), info.InputShape(first + 1)));
  g.offset_groups = info.Attr<int64_t>("offset_group", 1);
  if (g.axes() > kMaxDeformAxes) return info.Refuse("more than three spatial axes");
  if (g.offset_groups < 1 || g.conv.channels % g.offset_groups != 0) {
    return info.Invalid("offset_group must divide the channels");
  }
  auto matches = [&](int input, int64_t step) {
    const Shape& shape = info.InputShape(input);
    return shape.rank() == g.axes() + 2 && shape[0] == g.conv.batch &&
           std::vector<int64_t>(shape.begin() + 2, shape.end()) == g.conv.window.output &&
           shape[1] * g.positions() == step;
  };
  if (!matches(first + 2, g.offset_step())) {
    return info.Invalid("offset does not fit, got " + info.InputShape(first + 2).ToString());
  }
  if (info.HasInput(first + 4) && !matches(first + 4, g.mask_step())) {
    return info.Invalid("mask does not fit, got " + info.InputShape(first + 4).ToString());
  }
  return g;
}

// The corners around one place: where they lie in a channel's image, their weights, and the
// weights' slopes by each coordinate.
template <typename T>
struct DeformSample {
  int count = 0;
  int64_t at[1 << kMaxDeformAxes];
  T weight[1 << kMaxDeformAxes];
  T slope[1 << kMaxDeformAxes][kMaxDeformAxes];
};

// The sample of tap `k` for output `o`; `offset` points at [axis, positions] of this tap.
template <typename T>
DeformSample<T> SampleAt(const DeformGeometry& g, int64_t k, int64_t o, const T* offset) {
  const WindowGeometry& w = g.conv.window;
  const int axes = g.axes();
  int64_t base[kMaxDeformAxes];
  T fraction[kMaxDeformAxes];
  int64_t tap = k, out = o;
  for (int a = axes - 1; a >= 0; --a) {
    const int64_t start =
        out % w.output[a] * w.strides[a] - w.pads_begin[a] + tap % w.kernel[a] * w.dilations[a];
    out /= w.output[a];
    tap /= w.kernel[a];
    const T place = static_cast<T>(start) + offset[a * g.positions() + o];
    // Far outside (and NaN) there is nothing to read: the clamp keeps the conversion defined.
    const T floor = std::floor(place);
    const bool near = floor >= T(-2) && floor <= static_cast<T>(w.input[a] + 1);
    base[a] = near ? static_cast<int64_t>(floor) : -2;
    fraction[a] = near ? place - floor : T(0);
  }
  DeformSample<T> sample;
  for (int corner = 0; corner < (1 << axes); ++corner) {
    int64_t at = 0;
    bool inside = true;
    for (int a = 0; a < axes; ++a) {
      const int64_t i = base[a] + ((corner >> a) & 1);
      inside = inside && i >= 0 && i < w.input[a];
      at = at * w.input[a] + i;
    }
    if (!inside) continue;
    sample.at[sample.count] = at;
    T weight = 1;
    for (int a = 0; a < axes; ++a) {
      const bool high = (corner >> a) & 1;
      weight *= high ? fraction[a] : 1 - fraction[a];
      T slope = high ? T(1) : T(-1);
      for (int b = 0; b < axes; ++b) {
        if (b != a) slope *= ((corner >> b) & 1) ? fraction[b] : 1 - fraction[b];
      }
      sample.slope[sample.count][a] = slope;
    }
    sample.weight[sample.count++] = weight;
  }
  return sample;
}

// columns[c, k, o] of one image = mask * X at the sampled place. `mask` may be null.
template <typename T>
void DeformColumns(const DeformGeometry& g, const T* x, const T* offset, const T* mask,
                   T* columns) {
  const int64_t taps = g.taps(), positions = g.positions(),
                share = g.conv.channels / g.offset_groups;
  const int64_t image = g.conv.window.InputCount();
  for (int64_t group = 0; group < g.offset_groups; ++group) {
    for (int64_t k = 0; k < taps; ++k) {
      const int64_t row = group * taps + k;
      for (int64_t o = 0; o < positions; ++o) {
        const DeformSample<T> sample = SampleAt(g, k, o, offset + row * g.axes() * positions);
        const T m = mask == nullptr ? T(1) : mask[row * positions + o];
        for (int64_t c = group * share; c < (group + 1) * share; ++c) {
          T value = 0;
          for (int s = 0; s < sample.count; ++s)
            value += sample.weight[s] * x[c * image + sample.at[s]];
          columns[(c * taps + k) * positions + o] = m * value;
        }
      }
    }
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_CONV_DEFORM_WINDOW_H_
