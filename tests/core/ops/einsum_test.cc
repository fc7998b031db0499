// SPDX-License-Identifier: Apache-2.0
// Einsum's equations, worked by hand: labels that repeat, dots, what is implicit, refusals.
#include <gtest/gtest.h>

#include "tests/kernel_case.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

using Floats = std::vector<float>;

KernelCase EinsumCase(const char* equation, std::vector<RuntimeValue> inputs) {
  return KernelCase("Einsum", std::move(inputs), {{"equation", Text(equation)}});
}

Tensor EinsumOf(KernelCase node) { return node.Run().value()[0].tensor(); }
void ExpectNoEinsum(KernelCase node) {
  const Status status = node.Run().status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
}

TEST(Einsum, FollowsItsEquation) {
  const Tensor square = Tensor::Of<float>({2, 2}, {1, 2, 3, 4}),
               wide = Tensor::Of<float>({2, 3}, {1, 2, 3, 4, 5, 6}),
               cube = Tensor::Of<float>({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}),
               row = FloatVector({1, 10, 100}), one = FloatVector({2}),
               scalar = Tensor::Scalar(3.0f);
  const struct {
    const char* equation;
    std::vector<RuntimeValue> inputs;
    Shape shape;
    Floats values;
  } cases[] = {
      {"ii", {square}, {}, {5}},
      {"ii->i", {square}, {2}, {1, 4}},
      {"bii->bi", {cube}, {2, 2}, {1, 4, 5, 8}},
      {"iii->i", {cube}, {2}, {1, 8}},
      {"ij->", {wide}, {}, {21}},
      {"ij->j", {wide}, {3}, {5, 7, 9}},
      {"ba", {wide}, {3, 2}, {1, 4, 2, 5, 3, 6}},  // implicit: by the alphabet
      {"bA", {wide}, {3, 2}, {1, 4, 2, 5, 3, 6}},  // capitals come first
      {"ij,jk", {square, wide}, {2, 3}, {9, 12, 15, 19, 26, 33}},
      {" i j , j -> i ", {wide, row}, {2}, {321, 654}},
      {"i,i->i", {row, one}, {3}, {2, 20, 200}},  // a dim of one is broadcast
      {"i,i", {one, row}, {}, {222}},
      {"i,j->ij", {one, row}, {1, 3}, {2, 20, 200}},
      {",ij->ji", {scalar, square}, {2, 2}, {3, 9, 6, 12}},
      {"ij,ij,ij->i", {wide, wide, wide}, {2}, {36, 405}},
      {"ij,jk,kl->il", {square, square, square}, {2, 2}, {37, 54, 81, 118}},
      {"iij,j->i", {cube, FloatVector({1, 10})}, {2}, {21, 87}},
      {"...i->i...", {cube}, {2, 2, 2}, {1, 3, 5, 7, 2, 4, 6, 8}},
      {"...ij,...j", {cube, FloatVector({1, -1})}, {2, 2}, {-1, -1, -1, -1}},
      {"...i,...i->...", {cube, Tensor::Of<float>({2, 1, 2}, {1, 0, 0, 1})}, {2, 2}, {1, 3, 6, 8}},
      {"...ii->...", {cube}, {2}, {5, 13}},
  };
  for (const auto& c : cases) {
    const Tensor y = EinsumOf(EinsumCase(c.equation, c.inputs));
    EXPECT_EQ(y.shape(), c.shape) << c.equation;
    EXPECT_EQ(y.ToVector<float>(), c.values) << c.equation;
  }
}

TEST(Einsum, RefusesEquationsThatDoNotFit) {
  const Tensor square = Tensor::Zeros(DType::kFloat32, {2, 2}),
               wide = Tensor::Zeros(DType::kFloat32, {2, 3});
  for (const char* equation : {"i", "ijk", "ij,jk", "ij->ik", "ij->ii", "i1->i", "ii->i", "i..j",
                               "...i...", "...ijk", "ij->i->j"}) {
    SCOPED_TRACE(equation);
    ExpectNoEinsum(EinsumCase(equation, {wide}));
  }
  ExpectNoEinsum(KernelCase("Einsum", {wide}));
  ExpectNoEinsum(EinsumCase("ij,jk->ik", {wide, square}));
  ExpectNoEinsum(EinsumCase("...i,...i", {wide, Tensor::Zeros(DType::kFloat32, {3, 3})}));
  ExpectNoEinsum(EinsumCase("ij,jk->ik", {square, Tensor::Zeros(DType::kFloat64, {2, 2})}));
}

TEST(Einsum, SumsIntegersAndHalves) {
  const int64_t odd = (int64_t{1} << 53) + 1;  // a double holds its even neighbours only
  const Tensor whole = Tensor::Of<int64_t>({2}, {odd, 2});
  EXPECT_EQ(EinsumOf(EinsumCase("i,i", {whole, IntVector({3, 1})})).ToVector<int64_t>(),
            (std::vector<int64_t>{3 * odd + 2}));
  EXPECT_EQ(EinsumOf(EinsumCase("i->", {whole})).ToVector<int64_t>(),
            (std::vector<int64_t>{odd + 2}));
  // 2049 is no float16 and would lose its last bit in a sum of halves: 2048 + 1 + 1.
  const Tensor halves = Tensor::Of<Float16>({3}, {Float16(2048.0f), Float16(1.0f), Float16(1.0f)});
  EXPECT_EQ(EinsumOf(EinsumCase("i->", {halves})).ToVector<float>(), Floats{2050});
}

// A sum of no terms is 0, whatever lies in the output's memory.
TEST(Einsum, SumsNoTermsToZeros) {
  const Tensor none = Tensor::Zeros(DType::kFloat32, {2, 0});
  EXPECT_EQ(EinsumOf(EinsumCase("ij,kj->ik", {none, none})).ToVector<float>(), Floats(4));
  EXPECT_EQ(EinsumOf(EinsumCase("ij->i", {none})).ToVector<float>(), Floats(2));
}

}  // namespace
}  // namespace caesura
