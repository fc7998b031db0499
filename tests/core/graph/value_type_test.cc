// SPDX-License-Identifier: Apache-2.0
// Types of values (core/graph/graph.h): as text, and as shapes.
#include <gtest/gtest.h>

#include "core/graph/graph.h"

namespace caesura {
namespace {

ValueType RowsOf(const std::string& symbol) {
  ValueType type = ValueType::Tensor(DType::kFloat32);
  type.shape = {Dim{-1, symbol}, Dim{3, ""}};
  return type;
}

TEST(ValueTypes, AreWrittenAsTheyAreRead) {
  EXPECT_EQ(ValueType().ToString(), "unknown");
  EXPECT_EQ(ValueType::Tensor(DType::kFloat32).ToString(), "float32[...]");  // rank unknown
  EXPECT_EQ(ValueType::Tensor(DType::kFloat32, Shape{}).ToString(), "float32[]");
  EXPECT_EQ(RowsOf("batch").ToString(), "float32[batch, 3]");
  EXPECT_EQ(RowsOf("").ToString(), "float32[?, 3]");
  const auto element = std::make_shared<const ValueType>(RowsOf(""));
  ValueType outer{ValueType::Kind::kSequence, {}, {}, {}, element};
  EXPECT_EQ(outer.ToString(), "sequence(float32[?, 3])");
  outer.kind = ValueType::Kind::kOptional;
  EXPECT_EQ(outer.ToString(), "optional(float32[?, 3])");
  outer.kind = ValueType::Kind::kMap;
  outer.key = DType::kString;
  EXPECT_EQ(outer.ToString(), "map(string, float32[?, 3])");
  EXPECT_EQ(ValueType({ValueType::Kind::kSequence, {}, {}, {}, nullptr}).ToString(), "sequence(?)");
}

TEST(ValueTypes, HaveAShapeWhenEveryDimIsANumber) {
  EXPECT_EQ(ValueType::Tensor(DType::kInt8, Shape{2, 0}).ConcreteShape(), (Shape{2, 0}));
  EXPECT_EQ(ValueType::Tensor(DType::kInt8, Shape{}).ConcreteShape(), Shape{});
  EXPECT_EQ(RowsOf("batch").ConcreteShape(), std::nullopt);
  EXPECT_EQ(ValueType::Tensor(DType::kInt8).ConcreteShape(), std::nullopt);
  EXPECT_FALSE((Dim{-1, "N"}).known());
  EXPECT_TRUE((Dim{0, ""}).known());
  EXPECT_FALSE((Dim{-1, "N"} == Dim{-1, "M"}));
}

}  // namespace
}  // namespace caesura
