// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/value_reader.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace caesura {
namespace {

// Protobuf by hand, so that tests need none of onnx's headers: a field of bytes, and one of a
// number.
std::string Field(int number, const std::string& bytes) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(bytes.size()) +
         bytes;
}
std::string Number(int number, int value) {
  return std::string(1, static_cast<char>(number << 3)) + static_cast<char>(value);
}

// TensorProto: 1 dims, 2 data_type, 9 raw_data. SequenceProto: 2 elem_type, 3 tensors, 5 sequences.
// OptionalProto: 2 elem_type, 3 tensor, 5 sequence, 7 optional.
const std::string kTensor = Number(1, 2) + Number(2, 9) + Field(9, std::string("\x01\x00", 2));
const std::string kSequence = Number(2, 1) + Field(3, kTensor) + Field(3, kTensor);

ValueType OfKind(ValueType::Kind kind) {
  ValueType type;
  type.kind = kind;
  return type;
}
const ValueType kTensorType = OfKind(ValueType::Kind::kTensor);
const ValueType kSequenceType = OfKind(ValueType::Kind::kSequence);
const ValueType kOptionalType = OfKind(ValueType::Kind::kOptional);

TEST(ValueReaderTest, Tensors) {
  const Tensor tensor = ReadValueBytes(kTensor, kTensorType).value().tensor();
  EXPECT_EQ(tensor.dtype(), DType::kBool);
  EXPECT_EQ(tensor.shape(), Shape({2}));
  EXPECT_TRUE(tensor.data<bool>()[0]);
}

TEST(ValueReaderTest, Sequences) {
  EXPECT_EQ(ReadValueBytes(kSequence, kSequenceType).value().sequence().size(), 2u);
  EXPECT_TRUE(ReadValueBytes("", kSequenceType).value().sequence().empty());
  const std::string nested = Number(2, 3) + Field(5, kSequence) + Field(5, Number(2, 1));
  const RuntimeValue value = ReadValueBytes(nested, kSequenceType).value();
  EXPECT_EQ(value.sequence()[0].sequence().size(), 2u);
  EXPECT_TRUE(value.sequence()[1].sequence().empty());
}

TEST(ValueReaderTest, Optionals) {
  EXPECT_FALSE(ReadValueBytes("", kOptionalType).value().has_value());
  EXPECT_FALSE(ReadValueBytes(Number(2, 1), kOptionalType).value().has_value());
  EXPECT_TRUE(ReadValueBytes(Number(2, 1) + Field(3, kTensor), kOptionalType).value().is_tensor());
  EXPECT_TRUE(
      ReadValueBytes(Number(2, 3) + Field(5, kSequence), kOptionalType).value().is_sequence());
}

TEST(ValueReaderTest, BadBytes) {
  for (size_t cut = 1; cut < kSequence.size(); ++cut) {
    static_cast<void>(ReadValueBytes(kSequence.substr(0, cut), kSequenceType));
  }
  EXPECT_EQ(ReadValueBytes("\xff\xff", kTensorType).status().code(), StatusCode::kInvalidModel);
  EXPECT_FALSE(ReadValueBytes(Number(1, 5) + Number(2, 9) + Field(9, "ab"), kTensorType).ok());
  EXPECT_EQ(ReadValueBytes(Number(2, 4), kSequenceType).status().code(),
            StatusCode::kUnsupported);  // of maps
  EXPECT_EQ(ReadValueBytes("", {}).status().code(), StatusCode::kUnsupported);
  std::string deep = Number(2, 3);
  for (int i = 0; i < 20 && deep.size() < 120; ++i) deep = Number(2, 3) + Field(5, deep);
  EXPECT_TRUE(ReadValueBytes(deep, kSequenceType).ok());
}

}  // namespace
}  // namespace caesura
