// SPDX-License-Identifier: Apache-2.0
#include "core/providers/copy_all.h"

#include <gtest/gtest.h>

#include "core/providers/counting_provider.h"
#include "core/providers/tensor_copy.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

// A provider that makes no copies together is asked for each.
TEST(CopyAll, IsManyCopies) {
  CountingDevice device({});
  const ExecutionProvider& provider = *device.providers()[0];
  std::vector<Tensor> from, to;
  std::vector<DeviceCopy> copies;
  for (int64_t size : {3, 5}) {
    from.push_back(CopyToDevice(Ramp(Shape{size}).tensor(), provider).value());
    to.push_back(Tensor::Allocate(DType::kFloat32, Shape{size}, provider.allocator()).value());
    copies.push_back({to.back().raw(), from.back().raw(), from.back().bytes()});
  }
  ASSERT_TRUE(CopyAll(provider, copies).ok());
  EXPECT_EQ(device.counts().copies_within, 2u);
  for (size_t i = 0; i < to.size(); ++i) {
    const Tensor back = HostCopyOf(to[i], device.providers()).value();
    EXPECT_TRUE(SameBits(RuntimeValue(back), Ramp(to[i].shape())));
  }
}

TEST(CopyAll, TakesCopiesThatStandApart) {
#ifndef CAESURA_ASSERTS
  GTEST_SKIP() << "not a build of cmake -DCAESURA_ASSERTS=ON";
#endif
  const CountingDevice device({});
  const ExecutionProvider& provider = *device.providers()[0];
  const Tensor memory = Tensor::Allocate(DType::kUInt8, Shape{100}, provider.allocator()).value();
  auto* at = static_cast<char*>(memory.raw());
  const auto copy = [&](const std::vector<DeviceCopy>& copies) {
    static_cast<void>(CopyAll(provider, copies));
  };
  copy({{at, at + 50, 10}, {at + 10, at + 50, 10}, {at + 20, at + 10, 0}});  // one source, none
  EXPECT_DEATH(copy({{at, at + 50, 10}, {at + 9, at + 70, 10}}), "AreApart");
  EXPECT_DEATH(copy({{at, at + 50, 10}, {at + 20, at + 9, 10}}), "AreApart");
  EXPECT_DEATH(copy({{at + 20, at + 41, 10}, {at, at + 60, 5}, {at + 50, at + 70, 10}}),
               "AreApart");
}

}  // namespace
}  // namespace caesura::testing
