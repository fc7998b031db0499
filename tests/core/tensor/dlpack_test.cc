// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/dlpack.h"

#include <dlpack/dlpack.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A tensor of another library's, which counts how often it is deleted.
template <typename Managed>
struct Producer {
  Producer(void* data, DLDataType type, std::vector<int64_t> dims, std::vector<int64_t> steps = {})
      : shape(std::move(dims)), strides(std::move(steps)) {
    managed.dl_tensor = {data, {kDLCPU, 0},  static_cast<int32_t>(shape.size()),
                         type, shape.data(), strides.empty() ? nullptr : strides.data(),
                         0};
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { ++static_cast<Producer*>(self->manager_ctx)->deleted; };
  }
  Managed managed = {};
  std::vector<int64_t> shape, strides;
  std::atomic<int> deleted{0};
};

struct Versioned : Producer<DLManagedTensorVersioned> {
  template <typename... Args>
  explicit Versioned(Args&&... args) : Producer(std::forward<Args>(args)...) {
    managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  }
};
using Legacy = Producer<DLManagedTensor>;

constexpr DLDataType kF32 = {kDLFloat, 32, 1};

TEST(DlpackTest, ADenseTensorIsSharedUntilItsLastReader) {
  float data[6] = {1, 2, 3, 4, 5, 6};
  Versioned from(data, kF32, std::vector<int64_t>{2, 3}, std::vector<int64_t>{3, 1});
  DlpackImport facts{true, true};
  Tensor tensor = ImportDlpack(&from.managed, &facts).value();
  EXPECT_EQ(tensor.raw(), data);
  EXPECT_EQ(tensor.shape(), (Shape{2, 3}));
  EXPECT_FALSE(facts.read_only || facts.copied);
  Tensor second = tensor.Reshaped({6});
  tensor = {};
  EXPECT_EQ(from.deleted, 0);
  std::thread([last = std::move(second)]() mutable { last = {}; }).join();
  EXPECT_EQ(from.deleted, 1);
}

TEST(DlpackTest, TheLegacyFormIsTakenToo) {
  int64_t data[2] = {7, 8};
  Legacy from(data, DLDataType{kDLInt, 64, 1}, std::vector<int64_t>{2});
  EXPECT_EQ(ImportDlpack(&from.managed).value().data<int64_t>()[1], 8);
  EXPECT_EQ(from.deleted, 1);
}

TEST(DlpackTest, OffsetsAndReadOnlyFlagsAreHeard) {
  float data[4] = {1, 2, 3, 4};
  Versioned from(data, kF32, std::vector<int64_t>{2});
  from.managed.dl_tensor.byte_offset = 8;
  from.managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  DlpackImport facts;
  EXPECT_THAT(ImportDlpack(&from.managed, &facts).value().ToVector<float>(), ElementsAre(3, 4));
  EXPECT_TRUE(facts.read_only);
}

TEST(DlpackTest, StridesAreCopiedOutAndTheProducerIsReleasedAtOnce) {
  float data[6] = {1, 2, 3, 4, 5, 6};
  const struct {
    std::vector<int64_t> shape, strides;
    int first;
    std::vector<float> expected;
  } cases[] = {
      {{3, 2}, {1, 3}, 0, {1, 4, 2, 5, 3, 6}},   // a transpose
      {{3}, {-2}, 5, {6, 4, 2}},                 // backwards
      {{2, 2}, {0, 1}, 1, {2, 3, 2, 3}},         // repeated
      {{2, 1, 2}, {3, 77, 2}, 0, {1, 3, 4, 6}},  // the stride of a dim of 1 says nothing
      {{1, 2, 1}, {INT64_MIN, 2, INT64_MAX}, 0, {1, 3}},
  };
  for (const auto& c : cases) {
    Versioned from(data + c.first, kF32, c.shape, c.strides);
    DlpackImport facts;
    const Tensor tensor = ImportDlpack(&from.managed, &facts).value();
    EXPECT_TRUE(facts.copied);
    EXPECT_EQ(from.deleted, 1);
    EXPECT_EQ(tensor.ToVector<float>(), c.expected);
  }
}

TEST(DlpackTest, BytesThatAreNotAlignedAreCopied) {
  alignas(8) char data[16] = {};
  const double one = 1;
  std::memcpy(data + 3, &one, 8);
  Versioned from(data + 3, DLDataType{kDLFloat, 64, 1}, std::vector<int64_t>{1});
  DlpackImport facts;
  EXPECT_EQ(ImportDlpack(&from.managed, &facts).value().ToVector<double>(), std::vector<double>{1});
  EXPECT_TRUE(facts.copied);
}

TEST(DlpackTest, EmptyTensorsHaveAnAddress) {
  Versioned from(nullptr, kF32, std::vector<int64_t>{0, 5}, std::vector<int64_t>{5, 1});
  const Tensor tensor = ImportDlpack(&from.managed).value();
  EXPECT_NE(tensor.raw(), nullptr);
  EXPECT_EQ(tensor.shape(), (Shape{0, 5}));
  EXPECT_EQ(from.deleted, 1);
}

TEST(DlpackTest, EveryTypeButStringsGoesOutAndComesBack) {
  for (int i = 1; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype == DType::kString) continue;
    for (const Shape& shape : {Shape{}, Shape{3, 2}, Shape{2, 0, 3}}) {
      const Tensor out = Tensor::Zeros(dtype, shape);
      DLManagedTensorVersioned* managed = ExportDlpack(out).value();
      EXPECT_EQ(managed->dl_tensor.strides != nullptr, shape.rank() > 0);
      const Tensor back = ImportDlpack(managed).value();
      EXPECT_EQ(back.dtype(), dtype);
      EXPECT_EQ(back.shape(), shape);
      EXPECT_EQ(back.raw() == out.raw(), shape.elements() > 0) << DTypeName(dtype);
    }
  }
}

TEST(DlpackTest, AnExportKeepsItsBytes) {
  Tensor tensor = Tensor::Of<float>({3}, {1, 2, 3});
  DLManagedTensor* legacy = ExportLegacyDlpack(tensor).value();
  DLManagedTensorVersioned* versioned = ExportDlpack(tensor, DLPACK_FLAG_BITMASK_READ_ONLY).value();
  tensor = {};
  EXPECT_EQ(static_cast<float*>(legacy->dl_tensor.data)[2], 3);
  legacy->deleter(legacy);
  EXPECT_EQ(static_cast<float*>(versioned->dl_tensor.data)[0], 1);
  EXPECT_EQ(versioned->dl_tensor.strides[0], 1);
  EXPECT_EQ(versioned->flags, DLPACK_FLAG_BITMASK_READ_ONLY);
  versioned->deleter(versioned);
}

TEST(DlpackTest, WhatCannotGoOut) {
  EXPECT_THAT(ExportDlpack(Tensor::Of<std::string>({1}, {"a"})).status().message(),
              HasSubstr("string"));
  EXPECT_EQ(ExportDlpack(Tensor()).status().code(), StatusCode::kUnsupported);
  const Tensor small = Tensor::Zeros(DType::kInt4, {2});
  EXPECT_THAT(ExportLegacyDlpack(small).status().message(), HasSubstr("int4"));
}

// Each spoils a good tensor; the producer must be released once all the same.
TEST(DlpackTest, WhatIsRefusedIsReleased) {
  float data[4] = {};
  const struct {
    void (*spoil)(DLManagedTensorVersioned&);
    const char* message;
  } cases[] = {
      {[](auto& m) { m.version.major = 2; }, "version 2.3, expected 1.x"},
      {[](auto& m) { m.dl_tensor.device = {kDLMetal, 0}; }, "device of type 8"},
      {[](auto& m) { m.dl_tensor.device = {kDLCUDA, -1}; }, "index -1"},
      {[](auto& m) { m.dl_tensor.dtype = {kDLFloat, 32, 4}; }, "4 lanes"},
      {[](auto& m) { m.dl_tensor.dtype = {kDLFloat, 80, 1}; }, "80 bits"},
      {[](auto& m) { m.dl_tensor.dtype = {kDLInt, 4, 1}; }, "packed int4"},
      {[](auto& m) { m.dl_tensor.ndim = -1; }, "rank -1"},
      {[](auto& m) { m.dl_tensor.ndim = 1 << 20; }, "rank 1048576"},
      {[](auto& m) { m.dl_tensor.shape = nullptr; }, "without a shape"},
      {[](auto& m) { m.dl_tensor.data = nullptr; }, "without data"},
      {[](auto& m) { m.dl_tensor.shape[0] = -2; }, "negative dim"},
      {[](auto& m) { m.dl_tensor.shape[0] = m.dl_tensor.shape[1] = int64_t{1} << 40; },
       "too large"},
      {[](auto& m) { m.dl_tensor.strides[0] = int64_t{1} << 62; }, "beyond all memory"},
      {[](auto& m) { m.dl_tensor.strides[0] = INT64_MIN; }, "beyond all memory"},
      {[](auto& m) { m.dl_tensor.byte_offset = UINT64_MAX - 8; }, "byte offset"},
      {[](auto& m) { m.dl_tensor.device = {kDLCUDA, 1}, m.dl_tensor.strides[0] = 1; },
       "cuda:1 that is not dense"},
  };
  for (const auto& c : cases) {
    Versioned from(data, kF32, std::vector<int64_t>{2, 2}, std::vector<int64_t>{2, 1});
    c.spoil(from.managed);
    const auto result = ImportDlpack(&from.managed);
    ASSERT_FALSE(result.ok()) << c.message;
    EXPECT_THAT(result.status().message(), HasSubstr(c.message));
    EXPECT_EQ(from.deleted, 1) << c.message;
  }
}

TEST(DlpackTest, PaddedSmallTypesComeIn) {
  uint8_t data[2] = {3, 15};
  Versioned from(data, DLDataType{kDLUInt, 4, 1}, std::vector<int64_t>{2});
  from.managed.flags = DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
  EXPECT_EQ(ImportDlpack(&from.managed).value().raw(), data);
}

TEST(DlpackTest, AProducerWithoutADeleterIsBorrowed) {
  float data[1] = {5};
  auto from = std::make_unique<Versioned>(data, kF32, std::vector<int64_t>{1});
  from->managed.deleter = nullptr;
  const Tensor tensor = ImportDlpack(&from->managed).value();
  from.reset();
  EXPECT_EQ(tensor.raw(), data);
  EXPECT_FALSE(tensor.buffer()->owns_memory());
}

}  // namespace
}  // namespace caesura
