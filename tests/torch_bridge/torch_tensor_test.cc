// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/torch_tensor.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace caesura::torch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TorchTensorTest, BytesAreSharedBothWays) {
  const at::Tensor source = at::arange(6, at::kFloat).reshape({2, 3});
  const Tensor in = FromTorch(source).value();
  EXPECT_EQ(in.raw(), source.data_ptr());
  EXPECT_EQ(in.shape(), (Shape{2, 3}));
  const at::Tensor back = ToTorch(in).value();
  EXPECT_EQ(back.data_ptr(), source.data_ptr());
  EXPECT_TRUE(at::equal(back, source));
}

TEST(TorchTensorTest, EitherSideMayGoFirst) {
  at::Tensor source = at::full({100}, 3.0);
  Tensor in = FromTorch(source).value();
  source.reset();
  at::Tensor back = ToTorch(in).value();
  in = {};
  EXPECT_EQ(back.sum().item<double>(), 300);
  std::thread([last = std::move(back)]() mutable { last.reset(); }).join();
}

TEST(TorchTensorTest, ViewsComeAsWhatTheyShow) {
  const at::Tensor source = at::arange(6, at::kFloat).reshape({2, 3});
  EXPECT_THAT(FromTorch(source.t()).value().ToVector<float>(), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(FromTorch(at::_neg_view(source[1])).value().ToVector<float>(),
              ElementsAre(-3, -4, -5));
  EXPECT_THAT(FromTorch(source[1]).value().ToVector<float>(), ElementsAre(3, 4, 5));
  EXPECT_THAT(FromTorch(at::_efficientzerotensor({2, 3}).t()).value().ToVector<float>(),
              ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_NE(FromTorch(at::empty({0, 4})).value().raw(), nullptr);
  EXPECT_EQ(FromTorch(source.clone().set_requires_grad(true)).value().elements(), 6);
}

TEST(TorchTensorTest, EveryTypeCrosses) {
  int crossed = 0;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const auto type = ScalarTypeOf(dtype);
    if (!type) continue;
    ++crossed;
    EXPECT_EQ(DTypeOf(*type), dtype);
    EXPECT_EQ(FromTorch(at::empty({3}, *type)).value().bytes(), 3 * DTypeSize(dtype));
  }
  EXPECT_EQ(crossed, 20);
}

TEST(TorchTensorTest, BytesOfADeviceStayThere) {
  const at::Tensor source = at::arange(6, at::kFloat).reshape({2, 3}),
                   there = source.to(c10::Device("privateuseone:0"));
  const Tensor in = FromTorch(there).value();
  EXPECT_EQ(in.device(), (Device{DeviceType::kOther, 0}));
  EXPECT_EQ(in.raw(), there.data_ptr());
  const at::Tensor back = ToTorch(in).value();
  EXPECT_EQ(back.device(), there.device());
  EXPECT_TRUE(at::equal(back.cpu(), source));
  EXPECT_TRUE(at::equal(ToTorch(FromTorch(there.t()).value()).value().cpu(),
                        source.t()));  // a copy made there
}

TEST(TorchTensorTest, WhatHasNoPlainBytesIsRefused) {
  EXPECT_THAT(FromTorch(at::Tensor()).status().message(), HasSubstr("undefined"));
  EXPECT_THAT(FromTorch(at::ones({2, 2}).to_sparse()).status().message(), HasSubstr("not dense"));
  EXPECT_THAT(FromTorch(at::empty({2}, at::kMeta)).status().message(), HasSubstr("meta"));
  const at::Tensor freed = at::ones({2});
  freed.storage().unsafeGetStorageImpl()->reset();
  EXPECT_THAT(FromTorch(freed).status().message(), HasSubstr("without memory"));
  EXPECT_THAT(ToTorch(Tensor::Of<std::string>({1}, {"a"})).status().message(), HasSubstr("string"));
}

}  // namespace
}  // namespace caesura::torch
