// SPDX-License-Identifier: Apache-2.0
#include "core/files/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "core/files/zip_archive.h"
#include "tests/core/files/faulty_file_system.h"

namespace caesura {
namespace {

using testing::FaultyFileSystem;
using ::testing::HasSubstr;
using Arrays = std::map<std::string, Tensor>;

// An .npy file of version 1 with this header.
std::string Npy(std::string header, const std::string& data) {
  header += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  out += {static_cast<char>(header.size()), static_cast<char>(header.size() >> 8)};
  return out + header + data;
}

std::string Header(const std::string& descr, const std::string& shape, bool fortran = false) {
  return "{'descr': '" + descr + "', 'fortran_order': " + (fortran ? "True" : "False") +
         ", 'shape': " + shape + ", }";
}

std::string BytesOf(const Tensor& tensor) {
  return std::string(static_cast<const char*>(tensor.raw()), tensor.bytes());
}

Arrays ExampleArrays() {
  Arrays out;
  out["x"] = Tensor::Of<float>({2, 3}, {1, 2, 3, 4, 5, -6});
  out["labels"] = Tensor::Of<int64_t>({3}, {1, -2, 3});
  out["flags"] = Tensor::Of<bool>({2}, {true, false});
  out["scalar"] = Tensor::Scalar(2.5);
  out["empty"] = Tensor::Zeros(DType::kUInt8, {0, 3});
  out["zeros"] = Tensor::Zeros(DType::kFloat16, {100, 100});
  return out;
}

void ExpectEqual(const Arrays& got, const Arrays& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) {
    ASSERT_EQ(got.count(name), 1u) << name;
    EXPECT_EQ(got.at(name).dtype(), tensor.dtype()) << name;
    EXPECT_EQ(got.at(name).shape(), tensor.shape()) << name;
    EXPECT_EQ(BytesOf(got.at(name)), BytesOf(tensor)) << name;
  }
}

TEST(NpyTest, ReadsWhatItWrote) {
  for (const auto& [name, tensor] : ExampleArrays()) {
    const std::string bytes = TensorToNpy(tensor).value();
    EXPECT_EQ((bytes.size() - tensor.bytes()) % 64, 0u);
    ExpectEqual({{name, TensorFromNpy(bytes).value()}}, {{name, tensor}});
  }
  EXPECT_EQ(TensorToNpy(Tensor::Scalar<BFloat16>(1.f)).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(TensorToNpy(Tensor::Of<std::string>({1}, {"a"})).status().code(),
            StatusCode::kUnsupported);
}

TEST(NpyTest, FortranOrderAndTheOtherByteOrder) {
  const Tensor stored = Tensor::Of<int32_t>({6}, {1, 4, 2, 5, 3, 6});
  const Tensor read = TensorFromNpy(Npy(Header("<i4", "(2, 3)", true), BytesOf(stored))).value();
  EXPECT_EQ(read.ToVector<int>(), (std::vector<int>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(TensorFromNpy(Npy(Header(">i2", "(2,)"), std::string("\x01\x02\xff\xfe", 4)))
                .value()
                .ToVector<int>(),
            (std::vector<int>{258, -2}));
}

TEST(NpyTest, TextsBecomeStrings) {
  std::string wide;
  for (const uint32_t code : {0x68, 0x69, 0, 0xe9, 0x20ac, 0x1f600})
    wide.append(reinterpret_cast<const char*>(&code), 4);
  const Tensor texts = TensorFromNpy(Npy(Header("<U3", "(2,)"), wide)).value();
  EXPECT_EQ(texts.data<std::string>()[0], "hi");
  EXPECT_EQ(texts.data<std::string>()[1], "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  const Tensor bytes = TensorFromNpy(Npy(Header("|S2", "(2,)"), std::string("ab\0\0", 4))).value();
  EXPECT_EQ(bytes.data<std::string>()[0], "ab");
  EXPECT_EQ(bytes.data<std::string>()[1], "");
}

struct BadNpy {
  const char* name;
  std::string bytes;
  const char* message;
};
class BadNpyTest : public ::testing::TestWithParam<BadNpy> {};

TEST_P(BadNpyTest, IsRefused) {
  const Result<Tensor> read = TensorFromNpy(GetParam().bytes);
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.status().message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadNpyTest,
    ::testing::Values(
        BadNpy{"Empty", "", "no .npy"}, BadNpy{"Short", "\x93NUMPY", "no .npy"},
        BadNpy{"Version", std::string("\x93NUMPY\x09\x00\x02\x00{}", 12), "version 9"},
        BadNpy{"LongHeader", std::string("\x93NUMPY\x01\x00\xff\xff{}", 12), "incomplete"},
        BadNpy{"NoDict", Npy("descr", ""), "cannot be read"},
        BadNpy{"EmptyDict", Npy("{}", ""), "cannot be read"},
        BadNpy{"Unclosed", Npy("{'descr': '<f4', 'shape': (1,", ""), "cannot be read"},
        BadNpy{"TwoShapes", Npy("{'shape': (1,), 'shape': (1,)}", ""), "cannot be read"},
        BadNpy{"Trailing", Npy(Header("<f4", "(1,)") + "x", "1234"), "cannot be read"},
        BadNpy{"Pickle", Npy(Header("|O", "(1,)"), "12345678"), "Python objects"},
        BadNpy{"Records",
               Npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "1234"),
               "records"},
        BadNpy{"UnknownDType", Npy(Header("<V2", "(1,)"), "12"), "not supported"},
        BadNpy{"NegativeDim", Npy(Header("<f4", "(-1,)"), ""), "negative dim"},
        BadNpy{"TooLarge", Npy(Header("<f4", "(9223372036854775807, 9223372036854775807)"), ""),
               "too large"},
        BadNpy{"TooShort", Npy(Header("<f4", "(2,)"), "1234"), "4 bytes stored"},
        BadNpy{"TooLong", Npy(Header("<f4", "(1,)"), "12345678"), "8 bytes stored"},
        BadNpy{"GigabytesInTinyFile", Npy(Header("<f4", "(536870912,)"), "1234"), "4 bytes stored"},
        BadNpy{"TextsOfNothing", Npy(Header("<U0", "(536870912,)"), ""), "cannot be read"},
        BadNpy{"CodePoint", Npy(Header("<U1", "(1,)"), "\xff\xff\xff\xff"), "code point"},
        BadNpy{"ByteOrder", Npy(Header("xf4", "(1,)"), "1234"), "cannot be read"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(NpzTest, ReadsWhatItWrote) {
  for (const bool compress : {false, true}) {
    FaultyFileSystem files;
    ASSERT_TRUE(WriteNpz("a.npz", ExampleArrays(), compress, files).ok());
    ExpectEqual(ReadNpz("a.npz", {}, files).value(), ExampleArrays());
  }
  FaultyFileSystem files;
  ASSERT_TRUE(WriteNpz("none.npz", {}, false, files).ok());
  EXPECT_TRUE(ReadNpz("none.npz", {}, files).value().empty());
}

TEST(NpzTest, KeepsItsLimit) {
  FaultyFileSystem files;
  ASSERT_TRUE(WriteNpz("a.npz", ExampleArrays(), true, files).ok());
  EXPECT_THAT(ReadNpz("a.npz", {.max_bytes = 10000}, files).status().message(),
              HasSubstr("more than 10000"));
}

Result<Arrays> ReadNpzBytes(const std::string& bytes) {
  FaultyFileSystem files;
  auto file = files.Create("f").value();
  EXPECT_TRUE(file->Write(bytes).ok());
  return ReadNpz("f", {}, files);
}

// Whatever bytes come, the answer is a status; the sanitizer builds look for the rest.
TEST(NpzTest, SurvivesDamage) {
  for (const bool compress : {false, true}) {
    FaultyFileSystem files;
    Arrays arrays = ExampleArrays();
    arrays["zeros"] = Tensor::Zeros(DType::kFloat16, {10});
    ASSERT_TRUE(WriteNpz("f", arrays, compress, files).ok());
    const std::string good = ReadWholeFile(files, "f", 1 << 20).value();
    for (size_t cut = 0; cut < good.size(); ++cut)
      EXPECT_FALSE(ReadNpzBytes(good.substr(0, cut)).ok());
    std::mt19937 random(1);
    for (int i = 0; i < 3000; ++i) {
      std::string bad = good;
      for (int k = 0; k < 1 + i % 3; ++k) bad[random() % bad.size()] = static_cast<char>(random());
      static_cast<void>(ReadNpzBytes(bad));
    }
  }
}

TEST(NpzTest, DamagedNumbersAreNoticed) {
  FaultyFileSystem files;
  ASSERT_TRUE(WriteNpz("f", {{"x", Tensor::Of<float>({2}, {1, 2})}}, false, files).ok());
  std::string bytes = ReadWholeFile(files, "f", 1 << 20).value();
  const size_t at = bytes.find("PK\x01\x02") - 1;  // the last byte of the array
  bytes[at] ^= 1;
  EXPECT_THAT(ReadNpzBytes(bytes).status().message(), HasSubstr("checksum"));
}

}  // namespace
}  // namespace caesura
