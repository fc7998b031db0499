// SPDX-License-Identifier: Apache-2.0
// The part that bodies of convolutions and of pools share: windows that go back to where they came
// from.
#ifndef CAESURA_CORE_OPS_OPS_WINDOW_BODY_H_
#define CAESURA_CORE_OPS_OPS_WINDOW_BODY_H_

#include <optional>
#include <vector>

#include "core/gradient/op_body.h"

namespace caesura::gradient {

// One number a spatial axis in each vector.
struct BodyWindow {
  std::vector<int64_t> kernel, strides, dilations, begin, end;  // `begin`, `end`: pads

  int axes() const { return static_cast<int>(kernel.size()); }
  // Input positions that the kernel spans.
  int64_t Extent(int axis) const { return (kernel[axis] - 1) * dilations[axis] + 1; }
  // begin, then end, as the attribute `pads` has them.
  std::vector<int64_t> Pads() const;
};

// The sizes of the spatial axes of x, -1 where unknown.
std::vector<int64_t> SpatialSizes(Expr x);

// Reads the node's attributes for an input x. `kernel`: that of the weights; empty: kernel_shape.
// Refuses the node, and gives nothing, where ranks, or with auto_pad sizes, are unknown.
std::optional<BodyWindow> ReadBodyWindow(OpBody& b, Expr x, std::vector<int64_t> kernel = {});

// The sums of what all windows hold, of the spatial sizes of x: dy [N, M, output...] transposed
// through weights [M, C / groups, kernel...].
Expr SpreadWindows(Expr dy, Expr weights, int64_t groups, const BodyWindow& w, Expr x);

}  // namespace caesura::gradient

#endif  // CAESURA_CORE_OPS_OPS_WINDOW_BODY_H_
