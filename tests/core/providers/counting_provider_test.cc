// SPDX-License-Identifier: Apache-2.0
// The device for tests fails where a real one would.
#include "core/providers/counting_provider.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kNegation[] = "(float[2, 3] x) => (float[2, 3] y) { y = Neg (x) }";

// The wrapped kernels do see what is wrong.
TEST(CountingProvider, RefusesMemoryOfTheOtherSide) {
  CountingDevice device({});
  const Tensor x = Ramp(Shape{2, 3}).tensor();
  // A tensor that says to be on the device, and is not.
  const Tensor liar = Tensor::Borrow(x.dtype(), x.shape(), x.raw(), device.device());
  auto plan = PlanOf(GraphOf(kNegation), {liar}, {}, device.providers());
  ExecutionState state(plan);
  const auto refused = Finish(state, {liar});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("on the device is given host memory: input 0"));
  EXPECT_FALSE(device.providers()[0]->Copy(CopyKind::kToHost, x.raw(), x.raw(), 4).ok());
}

TEST(CountingProviderDeathTest, ClosesItsPagesToTheHost) {
  CountingDevice device({.close_pages = true});
  const Tensor there = CopyToDevice(Ramp(Shape{2, 3}).tensor(), *device.providers()[0]).value();
  EXPECT_DEATH(static_cast<volatile float*>(there.raw())[0] = 1, "");
}

// Copies are counted by direction, with their bytes; a copy within the device is neither.
TEST(CountingProvider, Counts) {
  CountingDevice device({.index = 3});
  EXPECT_EQ(device.providers()[0]->name(), "counting:3");
  EXPECT_EQ(device.device().ToString(), "device:3");
  const Tensor x = Ramp(Shape{2, 3}).tensor();
  const Tensor there = CopyToDevice(x, *device.providers()[0]).value();
  const Tensor again =
      Tensor::Allocate(x.dtype(), x.shape(), device.providers()[0]->allocator()).value();
  const Tensor back = Tensor::Zeros(x.dtype(), x.shape());
  ASSERT_TRUE(
      device.providers()[0]->Copy(CopyKind::kWithin, again.raw(), there.raw(), x.bytes()).ok());
  ASSERT_TRUE(
      device.providers()[0]->Copy(CopyKind::kToHost, back.raw(), again.raw(), x.bytes()).ok());
  ASSERT_TRUE(device.providers()[0]->Synchronise().ok());
  EXPECT_TRUE(SameBits(RuntimeValue(x), RuntimeValue(back)));
  const DeviceCounts counts = device.counts();
  EXPECT_EQ(counts.copies_to_device, 1u);
  EXPECT_EQ(counts.bytes_to_device, 24u);
  EXPECT_EQ(counts.copies_within, 1u);
  EXPECT_EQ(counts.copies_to_host, 1u);
  EXPECT_EQ(counts.bytes_to_host, 24u);
  EXPECT_EQ(counts.synchronisations, 1u);
  EXPECT_EQ(counts.kernels, 0u);
  device.Reset();
  EXPECT_EQ(device.counts().copies_to_device, 0u);
}

// Memory that is given back is given out again, and buffers outlive the device.
TEST(CountingProvider, ReusesItsMemory) {
  auto device = std::make_unique<CountingDevice>(CountingOptions{});
  Allocator& allocator = device->providers()[0]->allocator();
  auto first = allocator.Allocate(1000).value();
  void* const address = first->data();
  auto second = allocator.Allocate(10).value();
  first.reset();
  EXPECT_EQ(allocator.Allocate(500).value()->data(), address);
  EXPECT_NE(second->data(), address);
  device.reset();
  static_cast<char*>(second->data())[0] = 1;
}

}  // namespace
}  // namespace caesura::testing
