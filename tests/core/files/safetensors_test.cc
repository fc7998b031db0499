// SPDX-License-Identifier: Apache-2.0
#include "core/files/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/core/files/faulty_file_system.h"

namespace caesura {
namespace {

using testing::FaultyFileSystem;
using ::testing::HasSubstr;

// A file of this header and data, as ReadSafetensors sees it.
Result<TensorFile> ReadSafetensorsBytes(const std::string& bytes) {
  FaultyFileSystem files;
  auto file = files.Create("f").value();
  EXPECT_TRUE(file->Write(bytes).ok());
  return ReadSafetensors("f", files);
}

std::string WithLength(const std::string& header, const std::string& data = "") {
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i)
    out[i] = static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  return out + header + data;
}

TensorFile ExampleFile() {
  TensorFile out;
  out.tensors["weight"] = Tensor::Of<float>({2, 3}, {1, 2, 3, 4, 5, -6});
  out.tensors["mask"] = Tensor::Of<bool>({3}, {true, false, true});
  out.tensors["count"] = Tensor::Scalar<int64_t>(1 << 30);
  out.tensors["half"] = Tensor::Of<BFloat16>({1, 2}, {1.5f, -2.f});
  out.tensors["empty"] = Tensor::Zeros(DType::kFloat64, {0, 4});
  out.tensors["\"qu\\oted\"\n\xc3\xa9"] = Tensor::Of<uint8_t>({2}, {7, 9});
  out.metadata["format"] = "pt";
  out.metadata["note"] = "line\nbreak \xe2\x82\xac";
  return out;
}

TEST(SafetensorsTest, ReadsWhatItWrote) {
  FaultyFileSystem files;
  const TensorFile written = ExampleFile();
  ASSERT_TRUE(WriteSafetensors("f", written, files).ok());
  const TensorFile read = ReadSafetensors("f", files).value();
  EXPECT_EQ(read.metadata, written.metadata);
  ASSERT_EQ(read.tensors.size(), written.tensors.size());
  for (const auto& [name, tensor] : written.tensors) {
    const Tensor& other = read.tensors.at(name);
    EXPECT_EQ(other.dtype(), tensor.dtype()) << name;
    EXPECT_EQ(other.shape(), tensor.shape()) << name;
    EXPECT_EQ(std::memcmp(other.raw(), tensor.raw(), tensor.bytes()), 0) << name;
  }
}

TEST(SafetensorsTest, TensorsAreAlignedInTheFile) {
  FaultyFileSystem files;
  ASSERT_TRUE(WriteSafetensors("f", ExampleFile(), files).ok());
  const auto reader = SafetensorsReader::Open("f", files).value();
  for (const auto& [name, entry] : reader.entries())
    EXPECT_EQ(entry.offset % DTypeSize(entry.dtype), 0u) << name;
  EXPECT_EQ(reader.Read("none").status().code(), StatusCode::kNotFound);
}

TEST(SafetensorsTest, AFileOfNothing) {
  FaultyFileSystem files;
  ASSERT_TRUE(WriteSafetensors("f", {}, files).ok());
  EXPECT_TRUE(ReadSafetensors("f", files).value().tensors.empty());
}

TEST(SafetensorsTest, RefusesWhatTheFormatCannotSay) {
  FaultyFileSystem files;
  const auto write = [&](TensorFile contents) { return WriteSafetensors("f", contents, files); };
  EXPECT_EQ(write({{{"s", Tensor::Of<std::string>({1}, {"a"})}}, {}}).code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(write({{{"s", Tensor::Zeros(DType::kInt4, {2})}}, {}}).code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(write({{{"\xff", Tensor::Scalar(1.f)}}, {}}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(write({{{"__metadata__", Tensor::Scalar(1.f)}}, {}}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(write({{}, {{"key", "\xc0\x80"}}}).code(),
            StatusCode::kInvalidArgument);  // an overlong NUL
  EXPECT_EQ(write({{}, {{"key", "\xed\xa0\x80"}}}).code(),
            StatusCode::kInvalidArgument);  // a surrogate
  EXPECT_TRUE(files.List(".").value().empty());
}

struct BadFile {
  const char* name;
  std::string bytes;
  const char* message;
};

std::string Tensors(const std::string& body, size_t bytes) {
  return WithLength("{" + body + "}", std::string(bytes, 'x'));
}

class BadSafetensors : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadSafetensors, IsRefused) {
  const Result<TensorFile> read = ReadSafetensorsBytes(GetParam().bytes);
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.status().message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadSafetensors,
    ::testing::Values(
        BadFile{"Empty", "", "too short"}, BadFile{"NoHeader", WithLength(""), "begin with '{'"},
        BadFile{"LengthBeyondFile", std::string("\xff\0\0\0\0\0\0\0{}", 10),
                "declared in a file of"},
        BadFile{"HugeLength", std::string(8, '\xff') + "{}", "declared in a file of"},
        BadFile{"NotJson", WithLength("{nonsense}"), "no JSON"},
        BadFile{"CutJson", WithLength("{\"a\":{"), "no JSON"},
        BadFile{"Twice", WithLength("{}{}"), "no JSON"},
        BadFile{"List", WithLength("[]"), "begin with '{'"},
        BadFile{"Deep", WithLength("{\"a\":" + std::string(100000, '[')), "where none belongs"},
        BadFile{"DeepShape", Tensors(R"("a":{"shape":[[1]]})", 0), "where none belongs"},
        BadFile{"NullEntry", Tensors(R"("a":null)", 0), "null where none belongs"},
        BadFile{"NumberEntry", Tensors(R"("a":1)", 0), "number where none belongs"},
        BadFile{"NumberMetadata", Tensors(R"("__metadata__":{"a":1})", 0),
                "number where none belongs"},
        BadFile{"DeepMetadata", Tensors(R"("__metadata__":{"a":{}})", 0),
                "object where none belongs"},
        BadFile{"TwiceMetadata", Tensors(R"("__metadata__":{"a":"1","a":"2"})", 0), "'a' twice"},
        BadFile{"TwoMetadata", Tensors(R"("__metadata__":{},"__metadata__":{})", 0), "two entries"},
        BadFile{"NoShape", Tensors(R"("a":{"dtype":"U8","data_offsets":[0,1]})", 1), "lacks"},
        BadFile{"TwoShapes",
                Tensors(R"("a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]})", 1),
                "list"},
        BadFile{"UnknownKey",
                Tensors(R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"z":1})", 1),
                "not known"},
        BadFile{"UnknownDType",
                Tensors(R"("a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]})", 3),
                "F6_E2M3"},
        BadFile{"NegativeDim",
                Tensors(R"("a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", 1), "negative"},
        BadFile{"FractionDim",
                Tensors(R"("a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]})", 1), "fraction"},
        BadFile{
            "HugeDim",
            Tensors(R"("a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]})", 1),
            "too large"},
        BadFile{
            "Overflow",
            Tensors(R"("a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})",
                    0),
            "too large"},
        BadFile{"WrongSize", Tensors(R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4),
                "takes 8 bytes"},
        BadFile{
            "GigabytesInTinyFile",
            Tensors(R"("a":{"dtype":"F32","shape":[536870912],"data_offsets":[0,2147483648]})", 4),
            "are stored"},
        BadFile{"BackwardOffsets",
                Tensors(R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]})", 1),
                "data_offsets"},
        BadFile{"ThreeOffsets",
                Tensors(R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]})", 1),
                "data_offsets"},
        BadFile{"Gap", Tensors(R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]})", 2),
                "gap or an overlap"},
        BadFile{"BytesLeft", Tensors(R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})", 2),
                "2 are stored"},
        BadFile{
            "SameName",
            Tensors(
                R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]})",
                2),
            "two entries 'a'"},
        BadFile{
            "Overlap",
            Tensors(
                R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]})",
                3),
            "gap or an overlap"}),
    [](const auto& info) { return std::string(info.param.name); });

// Whatever bytes come, the answer is a status; the sanitizer builds look for the rest.
TEST(SafetensorsTest, SurvivesDamage) {
  FaultyFileSystem files;
  ASSERT_TRUE(WriteSafetensors("f", ExampleFile(), files).ok());
  const std::string good = ReadWholeFile(files, "f", 1 << 20).value();
  for (size_t cut = 0; cut < good.size(); ++cut)
    EXPECT_FALSE(ReadSafetensorsBytes(good.substr(0, cut)).ok());
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {
    std::string bad = good;
    for (int k = 0; k < 1 + i % 3; ++k) bad[random() % bad.size()] = static_cast<char>(random());
    static_cast<void>(ReadSafetensorsBytes(bad));
  }
}

}  // namespace
}  // namespace caesura
