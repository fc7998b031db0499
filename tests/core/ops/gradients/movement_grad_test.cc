// SPDX-License-Identifier: Apache-2.0
// GatherGrad, SliceGrad and PadGrad: small cases by hand, and that they are the transposes of their
// ops.
#include <limits>

#include "tests/core/ops/gradients/transposed_check.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

TEST(GatherGrad, AddsWhatIndicesRepeat) {
  ExpectInEveryFloat(
      "GatherGrad",
      {Tensor::Of<double>({4}, {1, 2, 4, 8}), IntVector({-1, 0, 2, -1}), IntVector({3})}, {},
      {{2, 0, 1 + 4 + 8}});
  ExpectInEveryFloat("GatherGrad",
                     {Tensor::Of<double>({2, 2}, {1, 2, 4, 8}), Tensor::Of<int32_t>({2}, {1, -3}),
                      IntVector({2, 3})},
                     {{"axis", int64_t{-1}}}, {{2, 1, 0, 8, 4, 0}});
  ExpectInEveryFloat("GatherGrad",  // nothing was gathered
                     {Tensor::Of<double>({0, 2}, {}), IntVector({}), IntVector({2, 2})}, {},
                     {{0, 0, 0, 0}});
}

// bfloat16 has 8 bits: 256 + 1 would be 256 in it.
TEST(GatherGrad, SumsHalvesInFloat) {
  const Tensor ones = Tensor::Of<BFloat16>({300}, std::vector<BFloat16>(300, 1.0f));
  const Tensor indices = Tensor::Zeros(DType::kInt64, {300});
  EXPECT_EQ(FirstOutput("GatherGrad", {ones, indices, IntVector({1})}), std::vector<double>{300});
}

// A base, in the gradient's place or not, is what slices are added to, in their order.
TEST(GatherGrad, AddsToABase) {
  const Tensor at = IntVector({2, 0, -1, 2, 2});
  const Tensor base = Numbers<double>({4, 300}, 3), dy = Numbers<double>({5, 300}, 9);
  std::vector<double> expected = base.ToVector<double>();
  const int64_t rows[] = {2, 0, 3, 2, 2};
  for (int64_t i = 0; i < dy.elements(); ++i)
    expected[rows[i / 300] * 300 + i % 300] += dy.data<double>()[i];
  ExpectInEveryFloat("GatherGrad", {dy, at, IntVector({4, 300}), base}, {}, {expected});
  EXPECT_THAT(WhyRefused("GatherGrad", {Numbers<float>({5, 3}, 1), at, IntVector({4, 3}),
                                        Numbers<float>({3, 4}, 1)}),
              HasSubstr("base: expected float32[4, 3], got float32[3, 4]"));
}

TEST(GatherGrad, RefusesWhatTheOpCannotHaveRead) {
  const Tensor dy = Tensor::Of<double>({2}, {1, 2});
  for (const int64_t outside : {-4, 3}) {
    EXPECT_THAT(WhyRefused("GatherGrad", {dy, IntVector({0, outside}), IntVector({3})}),
                HasSubstr(std::to_string(outside)));
  }
  EXPECT_THAT(WhyRefused("GatherGrad", {dy, IntVector({0, 1, 2}), IntVector({3})}),
              HasSubstr("dY: expected shape [3], got [2]"));
  EXPECT_NE(
      WhyRefused("GatherGrad", {dy, IntVector({0, 1}), IntVector({3})}, {{"axis", int64_t{1}}}),
      "");
}

TEST(GatherGrad, IsTheTranspose) {
  const Tensor at = Tensor::Of<int64_t>({3, 2}, {0, -1, 5, 5, 2, 0});
  for (int64_t axis : {0, 1, -1}) {
    CheckTransposed({.op = "Gather",
                     .x = {6, 7, 70},
                     .others = {at},
                     .attributes = {{"axis", axis}},
                     .indices_first = true});
  }
}

TEST(SliceGrad, PutsBackBackwards) {
  const int64_t from_the_end = std::numeric_limits<int64_t>::min();
  ExpectInEveryFloat("SliceGrad",
                     {Tensor::Of<double>({3}, {1, 2, 4}), IntVector({5}), IntVector({-1}),
                      IntVector({from_the_end}), IntVector({0}), IntVector({-2})},
                     {}, {{4, 0, 2, 0, 1}});
  ExpectInEveryFloat("SliceGrad",  // without axes and steps
                     {Tensor::Of<double>({1, 2}, {1, 2}), IntVector({2, 3}), IntVector({1, 0}),
                      IntVector({100, -1})},
                     {}, {{0, 0, 0, 1, 2, 0}});
  ExpectInEveryFloat("SliceGrad",  // an empty slice
                     {Tensor::Of<double>({0}, {}), IntVector({3}), IntVector({2}), IntVector({1})},
                     {}, {{0, 0, 0}});
}

TEST(SliceGrad, RefusesAnotherSlicesGradient) {
  const Tensor dy = Tensor::Of<double>({2}, {1, 2}), zero = IntVector({0});
  EXPECT_THAT(WhyRefused("SliceGrad", {dy, IntVector({3}), zero, IntVector({3})}),
              HasSubstr("dY: expected shape [3], got [2]"));
  EXPECT_THAT(WhyRefused("SliceGrad", {dy, IntVector({3}), zero, IntVector({2}), zero, zero}),
              HasSubstr("steps: expected no zero"));
}

TEST(SliceGrad, IsTheTranspose) {
  CheckTransposed(
      {.op = "Slice",
       .x = {9, 40, 30},
       .others = {IntVector({-1, 2}), IntVector({0, 38}), IntVector({0, 1}), IntVector({-2, 3})}});
}

// X = [a, b, c] padded by 2 and 1. The comments tell what dY is the gradient of.
TEST(PadGrad, AddsCopiesInEachMode) {
  const Tensor dy = Tensor::Of<double>({6}, {1, 2, 4, 8, 16, 32});
  const std::pair<const char*, std::vector<double>> cases[] = {
      {"constant", {4, 8, 16}},              // 0 0 a b c 0
      {"edge", {1 + 2 + 4, 8, 16 + 32}},     // a a a b c c
      {"reflect", {4, 2 + 8 + 32, 1 + 16}},  // c b a b c b
      {"wrap", {4 + 32, 1 + 8, 2 + 16}},     // b c a b c a
  };
  for (const auto& [mode, expected] : cases) {
    ExpectInEveryFloat("PadGrad", {dy, IntVector({3}), IntVector({2, 1})}, {{"mode", Text(mode)}},
                       {expected});
  }
}

TEST(PadGrad, LeavesZerosWhereXWasCutOff) {
  ExpectInEveryFloat("PadGrad",  // [b, c, 0]
                     {Tensor::Of<double>({1, 3}, {1, 2, 4}), IntVector({1, 3}), IntVector({-1, 1}),
                      IntVector({-1})},
                     {}, {{0, 1, 2}});
}

TEST(PadGrad, RefusesOtherShapesAndModes) {
  const Tensor dy = Tensor::Of<double>({3}, {1, 2, 4});
  for (const char* mode : {"constant", "edge"}) {
    EXPECT_THAT(
        WhyRefused("PadGrad", {dy, IntVector({3}), IntVector({1, 0})}, {{"mode", Text(mode)}}),
        HasSubstr("dY: expected shape [4], got [3]"));
  }
  EXPECT_NE(
      WhyRefused("PadGrad", {dy, IntVector({2}), IntVector({1, 0})}, {{"mode", Text("mirror")}}),
      "");
}

TEST(PadGrad, IsTheTranspose) {
  for (const char* mode : {"constant", "reflect", "edge", "wrap"}) {
    CheckTransposed({.op = "Pad",
                     .x = {3, 5, 6},
                     .others = {IntVector({1, -1, 7, 0, 3, 2})},
                     .attributes = {{"mode", Text(mode)}}});
  }
}

}  // namespace
}  // namespace caesura
