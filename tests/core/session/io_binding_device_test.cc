// SPDX-License-Identifier: Apache-2.0
// Bound runs on a device, its copies and synchronisations counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan/device_constants.h"
#include "core/providers/counting_provider.h"
#include "core/session/session.h"
#include "graph_transforms/pipeline.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Session> SessionOn(const CountingDevice& device, const std::string& body) {
  auto model = ParseModelText("<ir_version: 10, opset_import: [\"\" : 23]> g " + body);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  SessionOptions options;
  options.providers = device.providers();
  options.passes = InferencePasses;
  return Session::Create(*std::move(model), options).value();
}
Tensor OnDevice(const CountingDevice& device, const RuntimeValue& value) {
  return CopyToDevice(value.tensor(), *device.providers()[0]).value();
}
RuntimeValue OnHost(const CountingDevice& device, const RuntimeValue& value) {
  const Tensor back = Tensor::Zeros(value.tensor().dtype(), value.tensor().shape());
  EXPECT_TRUE(device.providers()[0]
                  ->Copy(CopyKind::kToHost, back.raw(), value.tensor().raw(), back.bytes())
                  .ok());
  return back;
}

constexpr char kProduct[] =
    R"((float[N, 3] x) => (float[N, 2] y, float[N, 3] h) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
  h = Relu (x)
  y = MatMul (h, w)
})";

TEST(IoBindingDevice, WhatIsThereIsUsedThereAndStaysThere) {
  CountingDevice device({.close_pages = true});
  auto session = SessionOn(device, kProduct);
  const RuntimeValue x = Ramp(Shape{2, 3});
  const Values expected = session->Run({{"x", x}}).value();
  IoBinding binding(*session);
  ASSERT_TRUE(binding.BindInput("x", OnDevice(device, x)).ok());
  const Tensor mine = OnDevice(device, Tensor::Zeros(DType::kFloat32, Shape{2, 3}));
  ASSERT_TRUE(binding.BindOutput("h", mine).ok());
  ASSERT_TRUE(binding.BindOutput("y", device.device()).ok());
  ASSERT_TRUE(session->Run(binding).ok());  // planned; weights are on the device
  device.Reset();
  const Values results = session->Run(binding).value();
  const DeviceCounts counts = device.counts();
  EXPECT_EQ(counts.copies_to_device + counts.copies_to_host + counts.copies_within, 0u);
  EXPECT_EQ(counts.synchronisations, 0u);
  EXPECT_EQ(counts.kernels, 2u);
  EXPECT_EQ(results[0].tensor().raw(), mine.raw());
  EXPECT_EQ(results[1].tensor().device(), device.device());
  ASSERT_TRUE(session->Synchronise().ok());
  EXPECT_EQ(device.counts().synchronisations, 1u);
  EXPECT_TRUE(SameBits(OnHost(device, results[1]), expected[0]));
  EXPECT_TRUE(SameBits(OnHost(device, results[0]), expected[1]));
}

TEST(IoBindingDevice, TheSameSessionHandsOutOnTheHostAndOnTheDevice) {
  CountingDevice device({.close_pages = true});
  auto session = SessionOn(device, kProduct);
  const RuntimeValue x = Ramp(Shape{1, 3});
  IoBinding host(*session), there(*session);
  std::vector<float> y(2);
  ASSERT_TRUE(host.BindInput("x", x).ok() && there.BindInput("x", x).ok());
  ASSERT_TRUE(host.BindOutput("y", Tensor::Borrow(DType::kFloat32, Shape{1, 2}, y.data())).ok());
  ASSERT_TRUE(there.BindOutput("y", device.device()).ok());
  for (int round = 0; round < 3; ++round) {
    device.Reset();
    ASSERT_TRUE(session->Run(host).ok());
    EXPECT_EQ(device.counts().copies_to_host, 1u);  // h is bound nowhere, and stays
    EXPECT_GE(device.counts().synchronisations, 1u);
    device.Reset();
    const Values results = session->Run(there).value();
    EXPECT_EQ(device.counts().copies_to_host, 0u);
    EXPECT_EQ(device.counts().copies_to_device, 1u);  // x
    EXPECT_EQ(ToFloats(OnHost(device, results[0])), y);
  }
}

TEST(IoBindingDevice, AGrowingCacheNeverLeavesTheDevice) {
  CountingDevice device({.close_pages = true});
  auto session = SessionOn(
      device,
      R"((float[1, P, 4] past, float[1, 1, 4] x) => (float[1, T, 4] present, float[1, 1, 4] y) {
    axis = Constant <value = int64[1] {1}> ()
    present = Concat <axis = 1> (past, x)
    y = ReduceSum <keepdims = 1> (present, axis)
  })");
  IoBinding binding(*session);
  ASSERT_TRUE(binding.BindOutput("present", device.device()).ok());
  ASSERT_TRUE(binding.BindOutput("y").ok());
  const RuntimeValue x = Floats(Shape{1, 1, 4}, {1, 2, 3, 4});
  RuntimeValue past = OnDevice(device, x);
  ASSERT_TRUE(binding.BindInput("x", x).ok());
  device.Reset();
  constexpr int kSteps = 40;
  for (int step = 0; step < kSteps; ++step) {
    ASSERT_TRUE(binding.BindInput("past", past).ok());
    const Values results = session->Run(binding).value();
    EXPECT_EQ(ToFloats(results[1])[3], 4.0f * static_cast<float>(step + 2));
    past = results[0];
  }
  EXPECT_EQ(past.tensor().shape(), (Shape{1, kSteps + 1, 4}));
  EXPECT_EQ(device.counts().copies_to_host, static_cast<uint64_t>(kSteps));  // y
  EXPECT_EQ(device.counts().bytes_to_host, kSteps * 16u);
  EXPECT_EQ(device.counts().bytes_to_device, kSteps * 16u);  // x
}

TEST(IoBindingDevice, AnInputOnTheDeviceMayBeReplaced) {
  CountingDevice device({.close_pages = true});
  auto session = SessionOn(device, "(float[3] x) => (float[3] y) { a = Neg (x) y = Mul (a, x) }");
  IoBinding binding(*session);
  const Tensor x = OnDevice(device, Floats(Shape{3}, {1, 2, 3}));
  ASSERT_TRUE(binding.BindInput("x", x).ok());
  ASSERT_TRUE(binding.BindOutput("y", x, IoBinding::Overlap::kExact).ok());
  ASSERT_TRUE(session->Run(binding).ok());
  EXPECT_EQ(ToFloats(OnHost(device, x)), (std::vector<float>{-1, -4, -9}));
  EXPECT_EQ(device.counts().copies_within, 1u);
}

TEST(IoBindingDevice, DevicesThatNobodyServesAreNamed) {
  CountingDevice device({}), other({.index = 7});
  auto session = SessionOn(device, kProduct);
  IoBinding binding(*session);
  ASSERT_TRUE(binding.BindInput("x", Ramp(Shape{2, 3})).ok());
  const Status status = binding.BindOutput("y", other.device());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(
      status.message(),
      HasSubstr(
          "output 'y' cannot be bound to device:7: the session's memory is on cpu, device:0"));
  ASSERT_TRUE(binding.BindOutput("y").ok());
  ASSERT_TRUE(binding.BindInput("x", OnDevice(other, Ramp(Shape{2, 3}))).ok());
  EXPECT_THAT(session->Run(binding).status().message(),
              HasSubstr("'x' is on device:7, which no provider serves"));
}

}  // namespace
}  // namespace caesura::testing
