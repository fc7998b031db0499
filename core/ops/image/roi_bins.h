// SPDX-License-Identifier: Apache-2.0
// Where RoiAlign samples and which elements MaxRoiPool looks at; shared with their gradients.
#ifndef CAESURA_CORE_OPS_IMAGE_ROI_BINS_H_
#define CAESURA_CORE_OPS_IMAGE_ROI_BINS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "core/kernels/kernel.h"

namespace caesura {

// X [batches, channels, height, width]; the result is [rois, channels, out_height, out_width].
struct RoiSpec {
  int64_t batches, channels, height, width;
  int64_t rois, out_height, out_width;
  double scale;
  int threads;
  int64_t sampling = 0;     // RoiAlign: points a bin along each axis; 0: as many as the bin is long
  bool half_pixel = false;  // RoiAlign: shift by half a pixel, and allow regions smaller than one
  bool max = false;         // RoiAlign: the largest weighted corner instead of the mean
  int64_t plane() const { return height * width; }
  int64_t out_plane() const { return out_height * out_width; }
  Shape out() const { return {rois, channels, out_height, out_width}; }
};

// From the node's attributes and the shapes of X, rois (and batch_indices, when the op has them).
Result<RoiSpec> MakeRoiAlignSpec(const KernelInfo& info, int x, int rois, int batch_indices);
Result<RoiSpec> MakeMaxRoiPoolSpec(const KernelInfo& info, int x, int rois);

inline Status CheckRoiBatch(int64_t batch, const RoiSpec& spec, const std::string& label) {
  if (batch >= 0 && batch < spec.batches) return {};
  return InvalidArgument(label + " batch index: expected 0 to " + std::to_string(spec.batches - 1) +
                         ", got " + std::to_string(batch));
}

// One point between four elements of a plane.
template <typename A>
struct RoiPoint {
  int64_t offset[4] = {0, 0, 0, 0};
  A weight[4] = {0, 0, 0, 0};
};

// The sampling points of one region (RoiAlign).
template <typename A>
class RoiPoints {
 public:
  // `roi`: x1, y1, x2, y2.
  template <typename T>
  RoiPoints(const RoiSpec& spec, const T* roi) : spec_(spec) {
    const A shift = spec.half_pixel ? A(0.5) : A(0), scale = static_cast<A>(spec.scale);
    left_ = static_cast<A>(roi[0]) * scale - shift;
    top_ = static_cast<A>(roi[1]) * scale - shift;
    A width = static_cast<A>(roi[2]) * scale - shift - left_,
      height = static_cast<A>(roi[3]) * scale - shift - top_;
    if (!spec.half_pixel) {
      width = std::max(width, A(1));
      height = std::max(height, A(1));
    }
    bin_width_ = width / static_cast<A>(spec.out_width);
    bin_height_ = height / static_cast<A>(spec.out_height);
    columns_ = spec.sampling > 0 ? spec.sampling : Adaptive(bin_width_);
    rows_ = spec.sampling > 0 ? spec.sampling : Adaptive(bin_height_);
  }

  // Calls fn(point) for the points of bin (h, w), row by row. Those that lie outside of the plane,
  // all of weight 0, come as one: regions of any size take no longer than the plane is large.
  template <typename Fn>
  void ForEach(int64_t h, int64_t w, Fn fn) const {
    const Range rows =
        Near(top_ + static_cast<A>(h) * bin_height_, bin_height_, rows_, spec_.height);
    const Range columns =
        Near(left_ + static_cast<A>(w) * bin_width_, bin_width_, columns_, spec_.width);
    const bool all = rows.last - rows.first == rows_ && columns.last - columns.first == columns_;
    const bool begins_outside = rows.first > 0 || columns.first > 0;
    if (!all && begins_outside) fn(RoiPoint<A>());
    for (int64_t row = rows.first; row < rows.last; ++row) {
      for (int64_t column = columns.first; column < columns.last; ++column)
        fn(At(h, w, row, column));
    }
    if (!all && !begins_outside) fn(RoiPoint<A>());
  }
  // A bin's elements, at least 1: a mean divides by them.
  A count() const { return static_cast<A>(std::max<int64_t>(1, rows_ * columns_)); }

 private:
  struct Range {
    int64_t first, last;
  };

  // Which of `count` points in a bin from `start` on may lie in [-1, length]; a few more, as At
  // knows it exactly.
  static Range Near(A start, A bin, int64_t count, int64_t length) {
    const double spacing =
        static_cast<double>(bin) / static_cast<double>(std::max<int64_t>(1, count));
    if (spacing == 0) return {0, count};
    const double ends[2] = {(-1 - static_cast<double>(start)) / spacing,
                            (static_cast<double>(length) - static_cast<double>(start)) / spacing};
    const double low = std::min(ends[0], ends[1]) - 3, high = std::max(ends[0], ends[1]) + 3,
                 most = static_cast<double>(count);
    if (!(low < most && high > 0)) return {0, 0};  // or no numbers
    return {static_cast<int64_t>(std::max(low, 0.0)), static_cast<int64_t>(std::min(high, most))};
  }

  // Point (row, column) of bin (h, w); all weights 0 where it lies outside of the plane.
  RoiPoint<A> At(int64_t h, int64_t w, int64_t row, int64_t column) const {
    RoiPoint<A> out;
    A y = top_ + static_cast<A>(h) * bin_height_ +
          (static_cast<A>(row) + A(0.5)) * bin_height_ / static_cast<A>(rows_);
    A x = left_ + static_cast<A>(w) * bin_width_ +
          (static_cast<A>(column) + A(0.5)) * bin_width_ / static_cast<A>(columns_);
    const bool inside =
        y >= -1 && y <= static_cast<A>(spec_.height) && x >= -1 && x <= static_cast<A>(spec_.width);
    if (!inside) return out;
    int64_t y0, y1, x0, x1;
    const A ly = Bracket(y, spec_.height, y0, y1), lx = Bracket(x, spec_.width, x0, x1);
    const int64_t offsets[4] = {y0 * spec_.width + x0, y0 * spec_.width + x1, y1 * spec_.width + x0,
                                y1 * spec_.width + x1};
    const A weights[4] = {(1 - ly) * (1 - lx), (1 - ly) * lx, ly * (1 - lx), ly * lx};
    std::copy(offsets, offsets + 4, out.offset);
    std::copy(weights, weights + 4, out.weight);
    return out;
  }

  static int64_t Adaptive(A bin) {
    const A points = std::ceil(bin);
    if (!(points > 0)) return 0;
    return points < A(1 << 20) ? static_cast<int64_t>(points) : int64_t{1} << 20;
  }

  // The neighbours of a coordinate and its distance from the lower one.
  static A Bracket(A at, int64_t length, int64_t& low, int64_t& high) {
    at = std::max(at, A(0));
    low = static_cast<int64_t>(at);
    if (low >= length - 1) {
      low = high = length - 1;
      return 0;
    }
    high = low + 1;
    return at - static_cast<A>(low);
  }

  const RoiSpec& spec_;
  A left_, top_, bin_width_, bin_height_;
  int64_t rows_, columns_;
};

// The part of a plane under one bin of MaxRoiPool, from batch_id, x1, y1, x2, y2 (Girshick, Fast
// R-CNN, as in Caffe: corners are rounded, both inclusive, and a region has at least one element).
struct RoiBin {
  int64_t top, bottom, left, right;

  template <typename T>
  static RoiBin Of(const RoiSpec& spec, const T* roi, int64_t h, int64_t w) {
    auto corner = [&](int i) {
      const double at = std::round(static_cast<double>(roi[i]) * spec.scale);
      return std::clamp(std::isnan(at) ? 0.0 : at, -0x1p40, 0x1p40);
    };
    const double x = corner(1), y = corner(2);
    const double width = std::max(corner(3) - x + 1, 1.0) / static_cast<double>(spec.out_width);
    const double height = std::max(corner(4) - y + 1, 1.0) / static_cast<double>(spec.out_height);
    auto bound = [](double at, int64_t limit) {
      return static_cast<int64_t>(std::clamp(at, 0.0, static_cast<double>(limit)));
    };
    return {bound(y + std::floor(static_cast<double>(h) * height), spec.height),
            bound(y + std::ceil(static_cast<double>(h + 1) * height), spec.height),
            bound(x + std::floor(static_cast<double>(w) * width), spec.width),
            bound(x + std::ceil(static_cast<double>(w + 1) * width), spec.width)};
  }

  // The offset of the first largest element of the plane; -1 for an empty bin.
  template <typename T>
  int64_t Largest(const T* plane, int64_t plane_width) const {
    int64_t best = -1;
    for (int64_t y = top; y < bottom; ++y) {
      for (int64_t x = left; x < right; ++x) {
        const int64_t at = y * plane_width + x;
        if (best < 0 || plane[at] > plane[best]) best = at;
      }
    }
    return best;
  }
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_IMAGE_ROI_BINS_H_
