// SPDX-License-Identifier: Apache-2.0
// SumTo against sums by index arithmetic, and the gradients of products by hand, where elements are
// zero: none of them divides.
#include "tests/tensors.h"
#include "tests/core/ops/gradients/training_case.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<Tensor> SumTo(const Tensor& dy, const Shape& shape, AttributeMap attributes = {},
                     int threads = 1) {
  KernelCase node("SumTo", {dy, IntVector(shape.dims())}, std::move(attributes), kCaesuraDomain);
  node.threads = threads;
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> out, node.Run());
  return out[0].tensor();
}

std::vector<double> ExpectedSum(const Tensor& dy, const Shape& shape) {
  std::vector<double> out(shape.elements(), 0.0);
  for (int64_t i = 0; i < dy.elements(); ++i) {
    int64_t rest = i, offset = 0, stride = 1;
    for (int d = dy.shape().rank() - 1; d >= 0; --d) {
      const int own = d - (dy.shape().rank() - shape.rank());
      if (own >= 0 && shape[own] != 1) offset += rest % dy.shape()[d] * stride;
      if (own >= 0) stride *= shape[own];
      rest /= dy.shape()[d];
    }
    out[offset] += dy.data<double>()[i];
  }
  return out;
}

TEST(SumTo, AddsWhatBroadcastingExpanded) {
  const std::vector<std::pair<Shape, Shape>> cases = {{{4, 5}, {5}},
                                                      {{4, 5}, {4, 1}},
                                                      {{4, 5}, {}},
                                                      {{4, 5}, {1, 1}},
                                                      {{2, 3, 4, 5}, {3, 1, 5}},
                                                      {{2, 3, 4, 5}, {2, 1, 4, 1}},
                                                      {{0, 3}, {3}},
                                                      {{3, 0}, {3, 1}},
                                                      {{0, 3}, {}},
                                                      {{0, 3}, {0, 1}},
                                                      {{2, 0}, {0}},
                                                      {{300, 400}, {400}},
                                                      {{300, 400}, {300, 1}},
                                                      {{300, 400}, {}},
                                                      {{7, 64, 100}, {64, 1}}};
  for (const auto& [from, to] : cases) {
    const Tensor dy = RandomTensor(from, 3);
    const std::vector<double> expected = ExpectedSum(dy, to);
    for (int threads : {1, 2, 3}) {
      const Tensor dx = SumTo(dy, to, {}, threads).value();
      ASSERT_EQ(dx.shape(), to);
      // Up to 120000 numbers near 1 in another order.
      ASSERT_THAT(dx.ToVector<double>(), AreNear(expected, 1e-10));
    }
  }
}

TEST(SumTo, CopiesOrSharesWhereNothingWasExpanded) {
  const Tensor dy = RandomTensor({1, 3}, 4);
  EXPECT_EQ(SumTo(dy, {3}).value().ToVector<double>(), dy.ToVector<double>());
  EXPECT_EQ(SumTo(dy, {1, 3}).value().ToVector<double>(), dy.ToVector<double>());
  EXPECT_FALSE(SumTo(dy, {2}).ok());
  EXPECT_FALSE(SumTo(dy, {1, 3, 1}).ok());
  EXPECT_FALSE(SumTo(dy, {-1}).ok());
}

// 300 ones are more than bfloat16's 8 bits count to one by one; as float32, also where nothing was
// expanded.
TEST(SumTo, SumsHalvesWideAndWidensThem) {
  const Tensor ones =
      InDType(Tensor::Of<double>({300}, std::vector<double>(300, 1.0)), DType::kBFloat16);
  EXPECT_THAT(SumTo(ones, {1}).value().ToVector<double>(), ElementsAre(300));
  const AttributeMap wide = {{"dtype", static_cast<int64_t>(DType::kFloat32)}};
  for (const Shape& shape : {Shape{1}, Shape{300}}) {
    const Tensor dx = SumTo(ones, shape, wide).value();
    EXPECT_EQ(dx.dtype(), DType::kFloat32);
    EXPECT_EQ(dx.ToVector<double>()[0], 300 / static_cast<double>(shape.elements()));
  }
}

TEST(ReduceProdGrad, OfOneAndOfTwoZeros) {
  const Tensor x = Tensor::Of<double>({2, 3}, {2, 0, 3, 0, 5, 0}),
               dy = Tensor::Of<double>({2, 1}, {7, 11});
  ExpectInEveryFloat("ReduceProdGrad", {dy, x, IntVector({-1})}, {}, {{0, 42, 0, 0, 0, 0}});
  ExpectInEveryFloat("ReduceProdGrad", {Tensor::Of<double>({3}, {1, 2, 4}), x, IntVector({0})},
                     {{"keepdims", int64_t{0}}}, {{0, 10, 0, 2, 0, 12}});
  ExpectInEveryFloat("ReduceProdGrad",  // all axes
                     {Tensor::Of<double>({1}, {7}), Tensor::Of<double>({4}, {2, 0, 3, 5})}, {},
                     {{0, 210, 0, 0}});
}

TEST(ReduceProdGrad, OfNothing) {
  const Tensor x = Tensor::Of<double>({0, 2}, {}), dy = Tensor::Of<double>({1, 2}, {1, 2});
  ExpectInEveryFloat("ReduceProdGrad", {dy, x, IntVector({0})}, {}, {{}});
  ExpectInEveryFloat("ReduceProdGrad",  // a product of one element is that element
                     {dy, dy, IntVector({})}, {{"noop_with_empty_axes", int64_t{1}}}, {{1, 2}});
  EXPECT_THAT(WhyRefused("ReduceProdGrad", {dy, dy, IntVector({1})}),
              HasSubstr("dY: expected float64[1, 1], got float64[1, 2]"));
}

// (a, b, c, d) = (2, 0, 3, 5), so Y = (a, ab, abc, abcd), and b gets a (1 + c + cd).
TEST(CumProdGrad, OfAZeroFromEitherEnd) {
  const Tensor x = Tensor::Of<double>({4}, {2, 0, 3, 5}),
               dy = Tensor::Of<double>({4}, {1, 8, 64, 2}), axis = Tensor::Scalar<int64_t>(0);
  const Attribute yes = int64_t{1};
  ExpectInEveryFloat("CumProdGrad", {dy, x, axis}, {}, {{1, 2 * (8 + 3 * 64 + 15 * 2), 0, 0}});
  ExpectInEveryFloat("CumProdGrad", {dy, x, axis}, {{"exclusive", yes}},  // (1, a, ab, abc)
                     {{8, 2 * (64 + 3 * 2), 0, 0}});
  ExpectInEveryFloat("CumProdGrad", {dy, x, axis}, {{"reverse", yes}},  // (abcd, bcd, cd, d)
                     {{0, 15 * (8 + 2), 5 * 64, 2 + 3 * 64}});
  ExpectInEveryFloat("CumProdGrad", {dy, x, axis}, {{"exclusive", yes}, {"reverse", yes}},
                     {{0, 15, 5 * 8, 64 + 3 * 8}});  // (bcd, cd, d, 1)
}

TEST(CumProdGrad, GoesAlongItsAxisAlone) {
  const Tensor x = Tensor::Of<double>({2, 2}, {2, 0, 3, 5}),
               dy = Tensor::Of<double>({2, 2}, {1, 8, 64, 2});
  ExpectInEveryFloat("CumProdGrad", {dy, x, Tensor::Scalar<int64_t>(-2)}, {},
                     {{1 + 3 * 64, 8 + 5 * 2, 2 * 64, 0}});
  EXPECT_NE(WhyRefused("CumProdGrad", {dy, x, Tensor::Scalar<int64_t>(2)}), "");
  EXPECT_THAT(WhyRefused("CumProdGrad", {dy, x, IntVector({0, 1})}), HasSubstr("one number"));
}

// dX is dY times the cofactors: of rank n - 1 they are not all zero, below that they are.
TEST(DetGrad, OfSingularMatrices) {
  const Tensor pairs = Tensor::Of<double>({2, 2, 2}, {1, 2, 2, 4, 4, 2, 2, 3});
  ExpectInEveryFloat("DetGrad", {Tensor::Of<double>({2}, {1, 2}), pairs, {}}, {},
                     {{4, -2, -2, 1, 6, -4, -4, 8}});
  const Tensor one = Tensor::Scalar(1.0);
  ExpectInEveryFloat("DetGrad",  // the third row is the sum of the others
                     {one, Tensor::Of<double>({3, 3}, {1, 0, 2, 0, 1, 1, 1, 1, 3}), {}}, {},
                     {{2, 1, -1, 2, 1, -1, -2, -1, 1}});
  ExpectInEveryFloat("DetGrad", {one, Tensor::Of<double>({3, 3}, {1, 2, 3, 2, 4, 6, 3, 6, 9}), {}},
                     {}, {std::vector<double>(9, 0.0)});
  ExpectInEveryFloat("DetGrad", {one, Tensor::Of<double>({1, 1}, {0}), {}}, {}, {{1}});
  ExpectInEveryFloat("DetGrad", {one, Tensor::Of<double>({0, 0}, {}), {}}, {}, {{}});
  EXPECT_THAT(WhyRefused("DetGrad", {one, Tensor::Of<double>({1, 2}, {1, 2}), {}}),
              HasSubstr("expected square matrices, got [1, 2]"));
}

}  // namespace
}  // namespace caesura
