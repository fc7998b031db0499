// SPDX-License-Identifier: Apache-2.0
// Random tensors of floats and halves for tests of kernels, and comparisons up to roundings.
#ifndef CAESURA_TESTS_CORE_OPS_CUDA_HALF_NUMBERS_H_
#define CAESURA_TESTS_CORE_OPS_CUDA_HALF_NUMBERS_H_

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {

// "bfloat16[2,3] ", as ONNX's text has it.
inline std::string TypeText(DType dtype, const Shape& shape) {
  std::string dims;
  for (int64_t dim : shape) dims += (dims.empty() ? "" : ",") + std::to_string(dim);
  return std::string(dtype == DType::kFloat32 ? "float" : DTypeName(dtype)) + "[" + dims + "] ";
}

// Between -2 and 2.
inline RuntimeValue Numbers(DType dtype, const Shape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  Tensor out = Tensor::Zeros(dtype, shape);
  DispatchDType<float, Float16, BFloat16>(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t e = 0; e < out.elements(); ++e)
      out.data<T>()[e] = static_cast<T>(static_cast<float>(random() % 4001) / 1000 - 2);
  });
  return out;
}

// The error of so many roundings to the dtype, of a number of 1.
inline double RoundingsOf(DType dtype, int count) {
  return count * (dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8) / 2;
}

// All elements within the tolerance, relative to the largest of their tensor.
inline void ExpectClose(const Values& got, const Values& wanted, double tolerance) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const auto a = got[i].tensor().ToVector<double>(), b = wanted[i].tensor().ToVector<double>();
    double most = 0;
    for (double x : b) most = std::max(most, std::fabs(x));
    ASSERT_EQ(a.size(), b.size());
    for (size_t e = 0; e < a.size(); ++e)
      EXPECT_NEAR(a[e], b[e], tolerance * most) << "output " << i << ", element " << e;
  }
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_OPS_CUDA_HALF_NUMBERS_H_
