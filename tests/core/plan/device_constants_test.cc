// SPDX-License-Identifier: Apache-2.0
// Copies of initializers on a device: one for each value and device, whoever asks and how often.
#include "core/plan/device_constants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "core/graph/graph.h"
#include "core/providers/counting_provider.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/tiny_provider.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

// Two initializers of a graph.
struct TwoConstants {
  Graph graph;
  const Value* w = graph.AddInitializer("w", Tensor::Of<float>(Shape{2}, {1, 2}));
  const Value* k = graph.AddInitializer("k", Tensor::Of<float>(Shape{3}, {3, 4, 5}));
  const Tensor& of(const Value* value) const { return *graph.Initializer(value); }
};

// The bytes that the device holds, read back.
std::vector<float> ReadBack(const Tensor& there, const ExecutionProvider& provider) {
  const Tensor here = Tensor::Zeros(there.dtype(), there.shape());
  EXPECT_TRUE(provider.Copy(CopyKind::kToHost, here.raw(), there.raw(), there.bytes()).ok());
  EXPECT_TRUE(provider.Synchronise().ok());
  return here.ToVector<float>();
}

TEST(DeviceConstants, AreCopiedOnceForEachValueAndDevice) {
  const TwoConstants constants;
  CountingDevice first({.close_pages = true}), second({.index = 1, .close_pages = true});
  DeviceConstants copies;
  for (CountingDevice* device : {&first, &second}) {
    const ExecutionProvider& provider = *device->providers()[0];
    const Tensor w = copies.Get(constants.w, constants.of(constants.w), provider).value();
    const Tensor again = copies.Get(constants.w, constants.of(constants.w), provider).value();
    const Tensor k = copies.Get(constants.k, constants.of(constants.k), provider).value();
    EXPECT_EQ(w.device(), device->device());
    EXPECT_EQ(again.raw(), w.raw());
    EXPECT_NE(k.raw(), w.raw());
    EXPECT_EQ(device->counts().copies_to_device, 2u);
    EXPECT_EQ(device->counts().bytes_to_device, 20u);
    EXPECT_THAT(ReadBack(w, provider), ElementsAre(1, 2));
    EXPECT_THAT(ReadBack(k, provider), ElementsAre(3, 4, 5));
  }
}

TEST(DeviceConstants, ThreadsShareOneCopy) {
  const TwoConstants constants;
  CountingDevice device({});
  DeviceConstants copies;
  std::vector<std::future<const void*>> places;
  for (int i = 0; i < 4; ++i) {
    places.push_back(std::async(std::launch::async, [&]() -> const void* {
      return copies.Get(constants.w, constants.of(constants.w), *device.providers()[0])
          .value()
          .raw();
    }));
  }
  const void* const first = places[0].get();
  for (size_t i = 1; i < places.size(); ++i) EXPECT_EQ(places[i].get(), first);
  EXPECT_EQ(device.counts().copies_to_device, 1u);
}

// Plans hold the copies that they read.
TEST(DeviceConstants, CopiesOutliveTheirOwner) {
  const TwoConstants constants;
  CountingDevice device({});
  auto copies = std::make_unique<DeviceConstants>();
  const Tensor w =
      copies->Get(constants.w, constants.of(constants.w), *device.providers()[0]).value();
  copies.reset();
  EXPECT_THAT(ReadBack(w, *device.providers()[0]), ElementsAre(1, 2));
}

TEST(DeviceConstants, AFailedCopyIsTriedAgain) {
  const TwoConstants constants;
  FailingAllocator allocator;
  const TinyProvider provider(&allocator);
  DeviceConstants copies;
  allocator.FailAfter(0);
  EXPECT_EQ(copies.Get(constants.w, constants.of(constants.w), provider).status().code(),
            StatusCode::kOutOfMemory);
  allocator.Heal();
  const Result<Tensor> w = copies.Get(constants.w, constants.of(constants.w), provider);
  ASSERT_TRUE(w.ok()) << w.status().ToString();
  EXPECT_THAT(w->ToVector<float>(), ElementsAre(1, 2));
  EXPECT_EQ(allocator.calls(), 1);
}

TEST(DeviceConstants, TensorsWithoutElementsHaveCopiesToo) {
  Graph graph;
  const Value* none = graph.AddInitializer("none", Tensor::Zeros(DType::kFloat32, Shape{0, 3}));
  CountingDevice device({});
  DeviceConstants copies;
  const Tensor copy = copies.Get(none, *graph.Initializer(none), *device.providers()[0]).value();
  EXPECT_EQ(copy.shape(), (Shape{0, 3}));
  EXPECT_EQ(copy.device(), device.device());
}

}  // namespace
}  // namespace caesura::testing
