// SPDX-License-Identifier: Apache-2.0
// Sizes of a sliding window over the spatial axes of [N, C, spatial...]: what Conv, pooling and
// their relatives read from kernel_shape, strides, dilations, pads and auto_pad.
#ifndef CAESURA_CORE_KERNELS_WINDOWS_CONV_GEOMETRY_H_
#define CAESURA_CORE_KERNELS_WINDOWS_CONV_GEOMETRY_H_

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/kernels/kernel.h"

namespace caesura {

// One number a spatial axis in each vector.
struct WindowGeometry {
  std::vector<int64_t> input, kernel, output, strides, dilations, pads_begin, pads_end;

  int rank() const { return static_cast<int>(input.size()); }
  int64_t InputCount() const { return Product(input); }
  int64_t KernelCount() const { return Product(kernel); }
  int64_t OutputCount() const { return Product(output); }
  // Input positions that the kernel spans.
  int64_t Extent(int axis) const { return (kernel[axis] - 1) * dilations[axis] + 1; }
  static int64_t Product(const std::vector<int64_t>& dims);
};

// `g` without the kernel positions that meet no element of the input for any output: padding as
// long as a kernel may be costs nothing then. For ops in which such positions count for nothing.
WindowGeometry WithoutUnseen(WindowGeometry g);

// Reads the node's attributes for an input of shape `x`; `kernel` is the window where the op has a
// weight, otherwise empty: then kernel_shape is required. Output sizes honour ceil_mode, which
// drops windows that start in the padding after the input.
Result<WindowGeometry> MakeWindowGeometry(const KernelInfo& info, const Shape& x,
                                          std::vector<int64_t> kernel);

enum class ConvDirection {
  kForward,          // (src, weights, bias or null) -> dst
  kBackwardData,     // (dst, weights) -> src
  kBackwardWeights,  // (src, dst) -> weights
};

// A convolution: src [batch, channels, input...], weights [outputs, channels / groups, kernel...],
// dst [batch, outputs, output...].
struct ConvGeometry {
  int64_t batch = 0, channels = 0, outputs = 0, groups = 1;
  WindowGeometry window;

  Shape Src() const { return WithSpatial({batch, channels}, window.input); }
  Shape Weights() const { return WithSpatial({outputs, channels / groups}, window.kernel); }
  Shape Dst() const { return WithSpatial({batch, outputs}, window.output); }
  int64_t multiply_adds() const;

 private:
  static Shape WithSpatial(std::vector<int64_t> dims, const std::vector<int64_t>& spatial);
};

// For Conv and its kin. Fails where shapes, group or kernel_shape disagree.
Result<ConvGeometry> MakeConvGeometry(const KernelInfo& info, const Shape& x, const Shape& w);

// For ConvTranspose, as the convolution of which it is the gradient by the source: Src() is the
// node's output.
Result<ConvGeometry> MakeConvTransposeGeometry(const KernelInfo& info, const Shape& x,
                                               const Shape& w);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WINDOWS_CONV_GEOMETRY_H_
