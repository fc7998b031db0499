// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace caesura {
namespace {

using ::testing::ElementsAre;

TEST(TensorTest, CopiesShareTheBytesAndClonesDoNot) {
  const Tensor tensor = Tensor::Of<float>({2}, {1, 2});
  const Tensor copy = tensor, clone = tensor.Clone().value();
  tensor.data<float>()[0] = 5;
  EXPECT_THAT(copy.ToVector<float>(), ElementsAre(5, 2));
  EXPECT_THAT(clone.ToVector<float>(), ElementsAre(1, 2));
  EXPECT_EQ(copy.raw(), tensor.raw());
}

TEST(TensorTest, AnEmptyOneIsNoTensor) {
  const Tensor none;
  EXPECT_FALSE(none.defined());
  EXPECT_EQ(none.dtype(), DType::kUndefined);
  EXPECT_EQ(none.bytes(), 0u);
  EXPECT_TRUE(none.device().is_host());
  const Tensor no_elements = Tensor::Allocate(DType::kFloat32, {0, 3}).value();
  EXPECT_TRUE(no_elements.defined());
  EXPECT_EQ(no_elements.bytes(), 0u);
}

TEST(TensorTest, ABorrowedOneWritesToTheCallersMemory) {
  float own[3] = {1, 2, 3};
  const Tensor tensor = Tensor::Borrow(DType::kFloat32, {3}, own);
  EXPECT_FALSE(tensor.buffer()->owns_memory());
  tensor.data<float>()[1] = 7;
  EXPECT_EQ(own[1], 7);
}

TEST(TensorTest, APartOfABufferBeginsAtItsOffset) {
  const Tensor all = Tensor::Of<int32_t>({4}, {1, 2, 3, 4});
  const Tensor part(DType::kInt32, {2}, all.buffer(), 2 * sizeof(int32_t));
  EXPECT_THAT(part.ToVector<int>(), ElementsAre(3, 4));
}

TEST(TensorTest, StringsAreCopiedAsStrings) {
  const std::string long_one(100, 'x');  // it has memory of its own
  const Tensor tensor = Tensor::Of<std::string>({2}, {"a", long_one});
  const Tensor clone = tensor.Clone().value();
  tensor.data<std::string>()[1] = "changed";
  EXPECT_EQ(clone.data<std::string>()[1], long_one);
  EXPECT_EQ(Tensor::Zeros(DType::kString, {2}).data<std::string>()[1], "");
}

TEST(TensorTest, ElementsAreConverted) {
  EXPECT_THAT(Tensor::Of<BFloat16>({2}, {BFloat16(1.5f), BFloat16(-2)}).ToVector<double>(),
              ElementsAre(1.5, -2));
  EXPECT_THAT(Tensor::Of<bool>({2}, {true, false}).ToVector<int>(), ElementsAre(1, 0));
  EXPECT_THAT(Tensor::Scalar<int64_t>(-3).ToVector<float>(), ElementsAre(-3));
}

TEST(TensorTest, ReshapedReadsTheSameBytes) {
  const Tensor tensor = Tensor::Of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor flat = tensor.Reshaped({6});
  EXPECT_EQ(flat.shape(), Shape({6}));
  EXPECT_EQ(flat.raw(), tensor.raw());
}

TEST(TensorTest, SizesThatCannotBeCountedAreRefused) {
  EXPECT_FALSE(Tensor::Allocate(DType::kFloat64, {int64_t{1} << 40, int64_t{1} << 40}).ok());
  EXPECT_FALSE(Tensor::Allocate(DType::kFloat64, {-2}).ok());
}

TEST(RuntimeValueTest, HoldsOneKindOfThing) {
  const RuntimeValue nothing;
  EXPECT_FALSE(nothing.has_value());
  EXPECT_EQ(nothing.Describe(), "nothing");
  const RuntimeValue tensor = Tensor::Of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_TRUE(tensor.is_tensor());
  EXPECT_EQ(tensor.Describe(), "float32[2, 3]");
  const RuntimeValue list = RuntimeValue::Sequence({tensor, nothing});
  EXPECT_TRUE(list.is_sequence() && list.has_value() && !list.is_tensor());
  EXPECT_EQ(list.sequence().size(), 2u);
  EXPECT_EQ(list.Describe(), "a sequence");
  const RuntimeValue map =
      RuntimeValue::Map(Tensor::Of<int64_t>({1}, {7}), Tensor::Of<float>({1}, {0.5}));
  EXPECT_TRUE(map.is_map() && !map.is_sequence());
  EXPECT_EQ(map.Describe(), "map(int64, float32)");
  // An empty sequence is something.
  EXPECT_TRUE(RuntimeValue::Sequence({}).has_value());
}

}  // namespace
}  // namespace caesura
