// SPDX-License-Identifier: Apache-2.0
// Gradients of ops that are linear in X must be their transposes: <dY, op(X)> = <grad(dY), X>, in
// every float type and with any number of threads. (Numerical checks of whole rules are in
// tests/gradients.)
#ifndef CAESURA_TESTS_CORE_OPS_GRADIENTS_TRANSPOSED_CHECK_H_
#define CAESURA_TESTS_CORE_OPS_GRADIENTS_TRANSPOSED_CHECK_H_

#include <cmath>

#include "tests/tensors.h"
#include "tests/core/ops/gradients/training_case.h"

namespace caesura {

// Numbers of a few bits, so that they are exact in every type.
template <typename T>
Tensor Numbers(Shape shape, int salt) {
  Tensor out = Tensor::Zeros(kDTypeOf<T>, std::move(shape));
  for (int64_t i = 0; i < out.elements(); ++i) {
    out.data<T>()[i] = T(static_cast<float>((i * 37 + salt) % 17 - 8) / 8);
  }
  return out;
}

struct LinearCase {
  const char* op;
  Shape x;
  std::vector<RuntimeValue> others;  // of the op, after X
  AttributeMap attributes = {};
  bool takes_x =
      false;  // the gradient is (dY, X, others...), otherwise (dY, shape of X, others...)
  bool indices_first = false;  // (dY, others..., shape of X)
};

template <typename T>
void CheckTransposed(const LinearCase& c, double tolerance) {
  const Tensor x = Numbers<T>(c.x, 1), dims = IntVector(x.shape().dims());
  std::vector<RuntimeValue> forward = {x};
  for (const RuntimeValue& other : c.others) {
    // Float inputs follow X's type.
    const bool is_float =
        other.is_tensor() && other.tensor().dtype() == DType::kFloat32 && c.takes_x;
    forward.push_back(is_float ? RuntimeValue(InDType(other.tensor(), kDTypeOf<T>)) : other);
  }
  const auto y = KernelCase(c.op, forward, c.attributes).Run();
  ASSERT_TRUE(y.ok()) << y.status().ToString();
  const Tensor dy = Numbers<T>((*y)[0].tensor().shape(), 5);
  std::vector<RuntimeValue> backward = {dy, c.takes_x ? x : dims};
  if (c.indices_first) backward.pop_back();
  backward.insert(backward.end(), forward.begin() + 1, forward.end());
  if (c.indices_first) backward.push_back(dims);
  for (int threads : {1, 4}) {
    KernelCase node(std::string(c.op) + "Grad", backward, c.attributes, kCaesuraDomain);
    node.threads = threads;
    const auto dx = node.Run();
    ASSERT_TRUE(dx.ok()) << dx.status().ToString();
    const double scale = 1 + std::sqrt(Dot(dy, dy) * Dot(x, x));
    EXPECT_NEAR(Dot(dy, (*y)[0].tensor()), Dot((*dx)[0].tensor(), x), tolerance * scale) << c.op;
  }
}

inline void CheckTransposed(const LinearCase& c) {
  CheckTransposed<double>(c, 1e-12);
  CheckTransposed<float>(c, 1e-6);
  CheckTransposed<Float16>(c, 1e-3);
  CheckTransposed<BFloat16>(c, 1e-2);
}

}  // namespace caesura

#endif  // CAESURA_TESTS_CORE_OPS_GRADIENTS_TRANSPOSED_CHECK_H_
