// SPDX-License-Identifier: Apache-2.0
#include "core/providers/tensor_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan/device_constants.h"
#include "core/providers/counting_provider.h"

namespace caesura {
namespace {

TEST(TensorCopy, ThereAndBack) {
  CountingDevice device({.close_pages = true});
  const Tensor here = Tensor::Of<float>(Shape{3}, {1, -2, 3});
  const Tensor there = CopyToDevice(here, *device.providers()[0]).value();
  EXPECT_EQ(ToHost(there, device.providers())->ToVector<float>(), here.ToVector<float>());
  EXPECT_EQ(HostCopyOf(there, device.providers())->ToVector<float>(), here.ToVector<float>());
  ASSERT_TRUE(CopyElements(Tensor::Of<float>(Shape{3}, {4, 5, 6}), there, device.providers()).ok());
  EXPECT_EQ(ToHost(there, device.providers())->ToVector<float>(), (std::vector<float>{4, 5, 6}));
}

TEST(TensorCopy, HostTensorsAreThemselves) {
  const Tensor here = Tensor::Of<float>(Shape{2}, {1, 2});
  EXPECT_EQ(ToHost(here, {})->raw(), here.raw());
  EXPECT_NE(HostCopyOf(here, {})->raw(), here.raw());
}

TEST(TensorCopy, ADeviceThatNobodyServes) {
  CountingDevice device({});
  const Tensor there = CopyToDevice(Tensor::Scalar<float>(1), *device.providers()[0]).value();
  EXPECT_THAT(ToHost(there, {device.providers()[1]}).status().message(),
              ::testing::HasSubstr("a tensor is on device:0, which no provider serves"));
}

}  // namespace
}  // namespace caesura
