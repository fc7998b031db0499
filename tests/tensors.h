// SPDX-License-Identifier: Apache-2.0
// Small tensors for tests, infinity and NaN.
#ifndef CAESURA_TESTS_TENSORS_H_
#define CAESURA_TESTS_TENSORS_H_

#include <limits>
#include <utility>
#include <vector>

#include "core/tensor/tensor.h"

namespace caesura {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Tensors of one dim.
inline Tensor FloatVector(const std::vector<float>& values) {
  return Tensor::Of<float>(Shape{static_cast<int64_t>(values.size())}, values);
}
inline Tensor IntVector(const std::vector<int64_t>& values) {
  return Tensor::Of<int64_t>(Shape{static_cast<int64_t>(values.size())}, values);
}

}  // namespace caesura

#endif  // CAESURA_TESTS_TENSORS_H_
