// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/split_slices.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> SplitUp(const std::string& body, const Values& feeds) {
  return OpsLeft(MakeSplitSlicesPass(), body, feeds);
}

// --- slices ---

// The halves of rows, the second one first; ends after the last element, and counted from it.
TEST(SplitSlices, PartsOfAllAreASplit) {
  const char* body = R"((float[2, 3, 8] x) => (float[2, 3, 4] y, float[2, 3, 4] a, float[2, 3, 4] b)
      <int64[1] none = {0}, int64[1] half = {4}, int64[1] end = {9223372036854775807}, int64[1] last = {-1}, int64[1] back = {-4}> {
    b = Slice (x, half, end, last)
    a = Slice (x, none, back, last)
    y = Sub (b, a)
  })";
  EXPECT_THAT(SplitUp(body, {Ramp(Shape{2, 3, 8})}), ElementsAre("Split", "Sub"));
}

TEST(SplitSlices, UnevenPartsOfAnotherAxis) {
  const char* body = R"((float[5, 2] x) => (float[1, 2] y, float[3, 2] z, float[1, 2] w)
      <int64[1] none = {0}, int64[1] one = {1}, int64[1] four = {4}, int64[1] end = {99}> {
    a = Slice (x, none, one)
    b = Slice (x, one, four)
    c = Slice (x, four, end)
    y = Neg (a)
    z = Neg (b)
    w = Neg (c)
  })";
  EXPECT_THAT(SplitUp(body, {Ramp(Shape{5, 2})}), ElementsAre("Split", "Neg", "Neg", "Neg"));
}

// An empty part stays, and the others are a Split.
TEST(SplitSlices, PartsBesideAnEmptyOne) {
  const char* body = R"((float[4] x) => (float[2] y, float[2] z, float[0] w)
      <int64[1] none = {0}, int64[1] half = {2}, int64[1] end = {4}> {
    a = Slice (x, none, half)
    c = Slice (x, end, end)
    b = Slice (x, half, end)
    y = Neg (a)
    z = Neg (b)
    w = Neg (c)
  })";
  EXPECT_THAT(SplitUp(body, {Ramp(Shape{4})}), ElementsAre("Split", "Slice", "Neg", "Neg", "Neg"));
}

// A gap, an overlap, a stride, two axes, integers, a size that is not known: as they stand.
TEST(SplitSlices, OthersStay) {
  const std::string constants =
      "<int64[1] none = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}, int64[1] "
      "axis = {0}>";
  for (const auto& [b, c] : {std::pair("none, one", "two, four"),
                             {"none, two", "one, four"},
                             {"none, two, axis, one", "two, four, axis, two"},
                             {"none, two, none", "two, four, one"}}) {
    const std::string slices = " { b = Slice (x, " + std::string(b) + ") c = Slice (x, " +
                               std::string(c) + ") y = Neg (b) z = Neg (c) }";
    EXPECT_THAT(SplitUp("(float[4, 4] x) => (float[P, Q] y, float[R, S] z) " + constants + slices,
                        {Ramp(Shape{4, 4})}),
                ElementsAre("Slice", "Slice", "Neg", "Neg"))
        << slices;
  }
  const std::string halves =
      " { b = Slice (x, none, two) c = Slice (x, two, four) y = Neg (b) z = Neg (c) }";
  EXPECT_THAT(SplitUp("(float[N, 4] x) => (float[P, 4] y, float[R, 4] z) " + constants + halves,
                      {Ramp(Shape{4, 4})}),
              ElementsAre("Slice", "Slice", "Neg", "Neg"));
  EXPECT_THAT(SplitUp("(int64[4] x) => (int64[P] y, int64[R] z) " + constants + halves,
                      {Tensor::Of<int64_t>(Shape{4}, {1, 2, 3, 4})}),
              ElementsAre("Slice", "Slice", "Neg", "Neg"));
}

// --- gradients of slices ---

// The gradient of halves, the second one first, that something is added to; an empty part; and a
// graph output.
TEST(SplitSlices, GradientsOfAllPartsAreAConcat) {
  const char* body =
      R"((float[2, 3] a, float[2, 5] b, float[2, 0] none, float[2, 8] c) => (float[2, 8] y, float[2, 8] z)
      <int64[2] shape = {2, 8}, int64[1] start = {0}, int64[1] cut = {3}, int64[1] end = {9223372036854775807}, int64[1] axis = {1}> {
    da = ai.caesura.SliceGrad (a, shape, start, cut, axis)
    db = ai.caesura.SliceGrad (b, shape, cut, end, axis)
    empty = ai.caesura.SliceGrad (none, shape, end, end, axis)
    first = Add (db, c)
    second = Add (empty, first)
    y = Add (second, da)
    na = Neg (a)
    dna = ai.caesura.SliceGrad (na, shape, start, cut, axis)
    dnb = ai.caesura.SliceGrad (b, shape, cut, end, axis)
    z = Add (dnb, dna)
  })";
  const Values feeds = {Ramp(Shape{2, 3}), Ramp(Shape{2, 5}), Tensor::Of<float>(Shape{2, 0}, {}),
                        Ramp(Shape{2, 8})};
  EXPECT_THAT(SplitUp(body, feeds), ElementsAre("Concat", "Add", "Neg", "Concat"));
}

// A part that is read twice, a gap, an overlap: as they stand.
TEST(SplitSlices, OtherGradientsStay) {
  for (const auto& [size, a, b, last] : {std::tuple("4", "zero, two", "two, four", "Mul (y, da)"),
                                         {"5", "zero, two", "three, five", "Neg (y)"},
                                         {"4", "one, three", "two, four", "Neg (y)"}}) {
    const std::string n(size),
        body = "(float[2] a, float[2] b) => (float[" + n + "] y, float[" + n +
               "] z) <int64[1] shape = {" + n +
               R"(}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2},
                int64[1] three = {3}, int64[1] four = {4}, int64[1] five = {5}> {
      da = ai.caesura.SliceGrad (a, shape, )" +
               a + R"()
      db = ai.caesura.SliceGrad (b, shape, )" +
               b + R"()
      y = Add (da, db)
      z = )" + last +
               "}";
    EXPECT_THAT(SplitUp(body, {Ramp(Shape{2}), Ramp(Shape{2})}),
                ElementsAre("SliceGrad", "SliceGrad", "Add", ::testing::_))
        << body;
  }
}

}  // namespace
}  // namespace caesura::testing
