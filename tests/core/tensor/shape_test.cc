// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ShapeTest, AScalarHasOneElement) {
  const Shape scalar;
  EXPECT_EQ(scalar.rank(), 0);
  EXPECT_EQ(scalar.elements(), 1);
  EXPECT_EQ(scalar.ToString(), "[]");
  EXPECT_TRUE(scalar.Strides().empty());
}

// Few dims lie in the shape itself, more in a vector: both must read alike.
TEST(ShapeTest, AnyRank) {
  for (int rank = 1; rank <= 12; ++rank) {
    std::vector<int64_t> dims(rank);
    for (int i = 0; i < rank; ++i) dims[i] = 1 + i % 3;
    Shape shape(dims);
    const Shape copy = shape;
    EXPECT_EQ(shape.rank(), rank);
    EXPECT_EQ(shape.dims(), dims);
    EXPECT_EQ(shape, copy);
    shape[rank - 1] += 4;
    EXPECT_NE(shape, copy) << "the copy has dims of its own";
    EXPECT_EQ(shape[rank - 1], dims[rank - 1] + 4);
    EXPECT_NE(copy, Shape(std::vector<int64_t>(dims.begin(), dims.end() - 1)));
  }
}

TEST(ShapeTest, StridesAndPartsOfTheProduct) {
  const Shape shape = {2, 3, 4};
  EXPECT_THAT(shape.Strides(), ElementsAre(12, 4, 1));
  EXPECT_EQ(shape.elements(), 24);
  EXPECT_EQ(shape.Elements(1, 3), 12);
  EXPECT_EQ(shape.Elements(2, 2), 1);
  EXPECT_EQ(shape.ToString(), "[2, 3, 4]");
  EXPECT_EQ(Shape({2, 0, 4}).elements(), 0);
}

TEST(CheckedShapeTest, RefusesWhatCannotBeCounted) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(CheckedShape({2, 3}, DType::kFloat32).value(), Shape({2, 3}));
  EXPECT_TRUE(CheckedShape({0, 3}, DType::kFloat32).ok());
  EXPECT_FALSE(CheckedShape({-1}, DType::kFloat32).ok());
  EXPECT_FALSE(CheckedShape({std::numeric_limits<int64_t>::min()}, DType::kInt8).ok());
  EXPECT_FALSE(CheckedShape({kHuge, kHuge}, DType::kInt8).ok());
  EXPECT_FALSE(CheckedShape({int64_t{1} << 32, int64_t{1} << 32}, DType::kInt8).ok());
  // The bytes count, not only the elements.
  EXPECT_TRUE(CheckedShape({int64_t{1} << 60}, DType::kInt8).ok());
  EXPECT_FALSE(CheckedShape({int64_t{1} << 60}, DType::kFloat64).ok());
}

TEST(BroadcastShapeTest, AlignsAtTheLastDim) {
  EXPECT_EQ(BroadcastShape({2, 1, 4}, {3, 1}).value(), Shape({2, 3, 4}));
  EXPECT_EQ(BroadcastShape({}, {5}).value(), Shape({5}));
  EXPECT_EQ(BroadcastShape({1}, {0}).value(), Shape({0}));
  const Status wrong = BroadcastShape({2, 3}, {2}).status();
  EXPECT_EQ(wrong.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(wrong.message(), HasSubstr("[2, 3] and [2]"));
}

TEST(NormalizeAxisTest, CountsFromTheEnd) {
  EXPECT_EQ(NormalizeAxis(-1, 3).value(), 2);
  EXPECT_EQ(NormalizeAxis(-3, 3).value(), 0);
  EXPECT_EQ(NormalizeAxis(2, 3).value(), 2);
  for (const int64_t axis :
       {int64_t{3}, int64_t{-4}, int64_t{1} << 40, std::numeric_limits<int64_t>::min()}) {
    EXPECT_FALSE(NormalizeAxis(axis, 3).ok()) << axis;
  }
  EXPECT_FALSE(NormalizeAxis(0, 0).ok());
}

}  // namespace
}  // namespace caesura
