// SPDX-License-Identifier: Apache-2.0
// DynamicQuantizeLinear's rule (ONNX): uint8, with scale and zero point from the range of the
// elements, which is widened to hold 0.
#ifndef CAESURA_CORE_KERNELS_RANGE_QUANTIZER_H_
#define CAESURA_CORE_KERNELS_RANGE_QUANTIZER_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace caesura {

// x, a whole number or NaN, within T's range. NaN becomes the least number.
template <typename T>
T Saturate(float x) {
  constexpr float kLeast = std::numeric_limits<T>::min(), kMost = std::numeric_limits<T>::max();
  return static_cast<T>(std::fmin(std::fmax(x, kLeast), kMost));
}

struct RangeQuantizer {
  float scale = 1, zero = 0;

  static RangeQuantizer Of(const float* x, int64_t count) {
    float low = 0, high = 0;
    for (int64_t i = 0; i < count; ++i) {
      low = x[i] < low ? x[i] : low;
      high = x[i] > high ? x[i] : high;
    }
    // ONNX's formula gives zeros the scale 0, and then divides 0 by 0 for the zero
    // point and the elements: those are 0, as onnxruntime has them.
    const float scale = (high - low) / 255.0f, offset = -low / scale;
    return {scale, offset > 0 ? std::nearbyint(std::min(255.0f, offset)) : 0.0f};
  }
  // From 0 to 255. NaN becomes 0.
  float operator()(float x) const {
    const float q = std::nearbyint(x / scale) + zero;
    return q > 0 ? std::min(q, 255.0f) : 0.0f;
  }
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_RANGE_QUANTIZER_H_
