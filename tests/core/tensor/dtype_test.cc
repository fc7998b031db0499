// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/dtype.h"

#include <gtest/gtest.h>

#include <iterator>
#include <string>

namespace caesura {
namespace {

// Files hold the numbers: each must be the one that ONNX's TensorProto.DataType (1.23) gives.
TEST(DTypeTest, NumbersAreThoseOfOnnx) {
  const char* const names[] = {
      "float32",  "uint8",        "int8",           "uint16",     "int16",
      "int32",    "int64",        "string",         "bool",       "float16",
      "float64",  "uint32",       "uint64",         "complex64",  "complex128",
      "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz",
      "uint4",    "int4",         "float4e2m1",     "float8e8m0", "uint2",
      "int2"};
  ASSERT_EQ(std::size(names), static_cast<size_t>(kDTypeCount - 1));
  for (int i = 1; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_STREQ(DTypeName(dtype), names[i - 1]);
    EXPECT_EQ(DTypeFromName(names[i - 1]), dtype);
  }
  EXPECT_EQ(DTypeFromName("float31"), DType::kUndefined);
  EXPECT_EQ(DTypeFromName(""), DType::kUndefined);
}

TEST(DTypeTest, BytesInMemoryAndBitsInFiles) {
  EXPECT_EQ(DTypeSize(DType::kUndefined), 0u);
  EXPECT_EQ(DTypeSize(DType::kString), sizeof(std::string));
  for (int i = 1; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype == DType::kString) continue;  // each has its own length
    const int bits = DTypeFileBits(dtype), bytes = static_cast<int>(DTypeSize(dtype));
    if (bits >= 8) EXPECT_EQ(bits, 8 * bytes) << DTypeName(dtype);
    else EXPECT_EQ(bytes, 1) << DTypeName(dtype);
  }
  EXPECT_EQ(DTypeFileBits(DType::kInt4), 4);
  EXPECT_EQ(DTypeFileBits(DType::kUInt2), 2);
}

TEST(DTypeTest, EveryTypeIsInTheSetOfItsKind) {
  for (int i = 1; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_TRUE(kAllTypes.Contains(dtype)) << DTypeName(dtype);
    EXPECT_EQ(kFixedTypes.Contains(dtype), dtype != DType::kString) << DTypeName(dtype);
    if (IsDifferentiable(dtype)) {
      EXPECT_TRUE(IsFloating(dtype)) << DTypeName(dtype);
    }
    EXPECT_FALSE(IsFloating(dtype) && IsInteger(dtype)) << DTypeName(dtype);
    EXPECT_EQ(kFloatTypes.Contains(dtype), IsDifferentiable(dtype)) << DTypeName(dtype);
  }
  EXPECT_TRUE(IsInteger(DType::kInt4));
  EXPECT_FALSE(IsInteger(DType::kBool));
  EXPECT_FALSE(IsDifferentiable(DType::kFloat8E4M3FN));
  EXPECT_FALSE(kAllTypes.Contains(DType::kUndefined));
}

TEST(DTypeSetTest, SaysWhatItHolds) {
  const DTypeSet two = DTypeSet{DType::kFloat64} | DTypeSet{DType::kFloat32};
  EXPECT_EQ(two.ToString(), "float32, float64");
  EXPECT_FALSE(two.Contains(DType::kFloat16));
}

}  // namespace
}  // namespace caesura
