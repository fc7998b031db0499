// SPDX-License-Identifier: Apache-2.0
// The attributes of MaxPool, AveragePool, LpPool and their gradients, read for every device. An
// image is one channel of one sample.
#ifndef CAESURA_CORE_KERNELS_WINDOWS_POOL_GEOMETRY_H_
#define CAESURA_CORE_KERNELS_WINDOWS_POOL_GEOMETRY_H_

#include <cstdint>

#include "core/kernels/windows/conv_geometry.h"

namespace caesura {

// A window with three spatial axes: those that the op lacks come first and have one element.
struct Window3 {
  int64_t input[3], kernel[3], output[3], strides[3], dilations[3], pads[3];

  explicit Window3(const WindowGeometry& g) {
    for (int a = 0; a < 3; ++a) {
      const int from = a - (3 - g.rank());
      const bool has = from >= 0;
      input[a] = has ? g.input[from] : 1;
      kernel[a] = has ? g.kernel[from] : 1;
      output[a] = has ? g.output[from] : 1;
      strides[a] = has ? g.strides[from] : 1;
      dilations[a] = has ? g.dilations[from] : 1;
      pads[a] = has ? g.pads_begin[from] : 0;
    }
  }
  int64_t InputCount() const { return input[0] * input[1] * input[2]; }
  int64_t KernelCount() const { return kernel[0] * kernel[1] * kernel[2]; }
  int64_t OutputCount() const { return output[0] * output[1] * output[2]; }
};

struct PoolGeometry {
  WindowGeometry window;  // as the node has it
  WindowGeometry seen;    // without what meets padding only
  int64_t images = 0;
  Shape output;
};

// `x`: the shape of X. At most three spatial axes.
Result<PoolGeometry> MakePoolGeometry(const KernelInfo& info, const Shape& x);

// MaxPool: sets both outputs.
Result<PoolGeometry> MakeMaxPoolGeometry(KernelInfo& info);

// A gradient (dY, X, ...): checks dY, and sets the output, which is of X's shape.
Result<PoolGeometry> MakePoolGradGeometry(KernelInfo& info);

// GlobalMaxPoolGrad (dY, X): checks dY, and sets the output, which is of X's shape.
struct GlobalPoolShape {
  int64_t images, count;
};
Result<GlobalPoolShape> MakeGlobalPoolGradShape(KernelInfo& info);

// GlobalMaxPool and its relatives: checks X, and sets the output.
Result<GlobalPoolShape> MakeGlobalPoolShape(KernelInfo& info);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WINDOWS_POOL_GEOMETRY_H_
