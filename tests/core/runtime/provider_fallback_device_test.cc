// SPDX-License-Identifier: Apache-2.0
// Sessions whose device fails, and a provider that claims more than it can do: on the real kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/providers/counting_provider.h"
#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "graph_transforms/pipeline.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kDeviceNet[] = R"(<ir_version: 10, opset_import: ["" : 21]>
net (float[N, 4] x) => (float[N, 3] y, float[N, 4] r) <float[4, 3] w = {1, -2, 3, 4, -5, 6, 7, 8, -9, 1, 2, 3}> {
  r = Relu (x)
  m = MatMul (r, w)
  s = Softmax <axis = -1> (m)
  y = Add (s, m)
})";

SessionOptions OptionsOn(ProviderList providers) {
  SessionOptions options;
  options.passes = InferencePasses;
  options.providers = std::move(providers);
  return options;
}

NamedValues DeviceFeeds(int64_t rows = 2) { return {{"x", Ramp(Shape{rows, 4})}}; }

Values OnTheCpu(const NamedValues& feeds) {
  return Session::Create(ParseModelText(kDeviceNet).value(), OptionsOn({}))
      .value()
      ->Run(feeds)
      .value();
}

// Passes fuse for our own kernels, so a device and the CPU run the same ones.
TEST(DeviceFallback, ADeviceThatFailsAtEachKernelCall) {
  const Values expected = OnTheCpu(DeviceFeeds());
  for (int k = 0;; ++k) {
    CountingDevice device({});
    auto faulty =
        std::make_shared<FailingProvider>(device.providers()[0], "faulty", /*scribbles=*/true);
    faulty->FailAt(k);
    auto session = Session::Create(ParseModelText(kDeviceNet).value(),
                                   OptionsOn({faulty, device.providers()[1]}))
                       .value();
    EXPECT_TRUE(SameBits(session->Run(DeviceFeeds()).value(), expected)) << k;
    if (faulty->calls() <= k) {
      EXPECT_GE(k, 3);
      break;
    }
    ASSERT_TRUE(session->fallback().record());
    EXPECT_THAT(session->fallback().provider_names(), ElementsAre(kCpuProviderName));
    const DeviceCounts before = device.counts();
    EXPECT_TRUE(SameBits(session->Run(DeviceFeeds()).value(), expected));
    EXPECT_EQ(device.counts().kernels, before.kernels);
    EXPECT_EQ(device.counts().copies_to_device, before.copies_to_device);
  }
}

// A device whose memory is bound stays, without its kernels.
TEST(DeviceFallback, FeedsAndBuffersStayOnTheFailedDevice) {
  const Values expected = OnTheCpu(DeviceFeeds());
  for (int k : {0, 1, 2}) {
    CountingDevice device({});
    auto faulty =
        std::make_shared<FailingProvider>(device.providers()[0], "faulty", /*scribbles=*/true);
    faulty->FailAt(k);
    auto session = Session::Create(ParseModelText(kDeviceNet).value(),
                                   OptionsOn({faulty, device.providers()[1]}))
                       .value();
    const RuntimeValue x = CopyToDevice(Ramp(Shape{2, 4}).tensor(), *faulty).value();
    for (int round = 0; round < 2; ++round) {
      RunOptions options;
      for (const RuntimeValue& value : expected) {
        options.fetch_buffers.push_back(
            Tensor::Allocate(DType::kFloat32, value.tensor().shape(), faulty->allocator()).value());
      }
      const Values results = session->Run({{"x", x}}, {}, options).value();
      for (size_t i = 0; i < results.size(); ++i) {
        EXPECT_EQ(results[i].tensor().raw(), options.fetch_buffers[i].raw());
        Tensor host = Tensor::Zeros(DType::kFloat32, results[i].tensor().shape());
        ASSERT_TRUE(
            faulty->Copy(CopyKind::kToHost, host.raw(), results[i].tensor().raw(), host.bytes())
                .ok());
        EXPECT_TRUE(SameBits(host, expected[i])) << k;
      }
      EXPECT_EQ(faulty->calls(), k + 1);
    }
    EXPECT_THAT(session->fallback().provider_names(), ElementsAre(kCpuProviderName));
  }
}

// A binding's own run: an input whose bytes an output replaces, an output in fresh memory of the
// device.
TEST(DeviceFallback, BindingsThatReplaceAnInput) {
  const Values expected = OnTheCpu(DeviceFeeds());
  for (int k : {0, 1, 2}) {
    CountingDevice device({});
    auto faulty =
        std::make_shared<FailingProvider>(device.providers()[0], "faulty", /*scribbles=*/true);
    auto session = Session::Create(ParseModelText(kDeviceNet).value(),
                                   OptionsOn({faulty, device.providers()[1]}))
                       .value();
    for (int round = 0; round < 3; ++round) {
      if (round == 1) faulty->FailAt(k);
      const Tensor x = CopyToDevice(Ramp(Shape{2, 4}).tensor(), *faulty).value();
      IoBinding binding(*session);
      ASSERT_TRUE(binding.BindInput("x", x).ok());
      ASSERT_TRUE(binding.BindOutput("r", x, IoBinding::Overlap::kExact).ok());
      ASSERT_TRUE(binding.BindOutput("y", device.device()).ok());
      const Values results = session->Run(binding).value();
      EXPECT_EQ(results[0].tensor().raw(), x.raw());
      EXPECT_EQ(results[1].tensor().device(), device.device());
      EXPECT_TRUE(SameBits(session->ToHost(results[0]).value(), expected[1])) << k;
      EXPECT_TRUE(SameBits(session->ToHost(results[1]).value(), expected[0])) << k;
      EXPECT_EQ(session->fallback().record().has_value(), round > 0);
    }
    EXPECT_EQ(faulty->calls(), k + 1);
  }
}

TEST(DeviceFallback, ADeviceWithoutMemoryLeft) {
  CountingDevice device({.memory_bytes = 4096});
  auto session =
      Session::Create(ParseModelText(kDeviceNet).value(), OptionsOn(device.providers())).value();
  EXPECT_TRUE(SameBits(session->Run(DeviceFeeds()).value(), OnTheCpu(DeviceFeeds())));
  EXPECT_FALSE(session->fallback().record());
  EXPECT_TRUE(SameBits(session->Run(DeviceFeeds(300)).value(), OnTheCpu(DeviceFeeds(300))));
  ASSERT_TRUE(session->fallback().record());
  EXPECT_EQ(session->fallback().record()->provider, "counting:0");
  EXPECT_EQ(session->fallback().record()->node, "memory");
  EXPECT_EQ(session->fallback().record()->runs_before, 1u);
  EXPECT_THAT(session->fallback().record()->cause, HasSubstr("bytes left"));
}

// A factory that says yes to everything, and kernels that then do not do it.
TEST(DeviceFallback, AProviderThatClaimsMoreThanItCanDo) {
  class Claims : public FailingProvider {
   public:
    Claims() : FailingProvider(MakeCpuProvider(), "claims") {
      for (KernelDef def : FailingProvider::kernels().defs()) {
        if (def.op_type == "Hardmax") {
          def.create = [create = def.create](KernelInfo& info) -> Status {
            Status status = create(info);
            if (!status.ok() || info.Attr<int64_t>("axis", -1) >= 0) return status;
            const size_t bytes = static_cast<size_t>(info.InputShape(0).elements()) * sizeof(float);
            info.SetCompute([bytes](KernelContext& context) {
              std::memset(context.Output<void>(0), 0x77, bytes);
              return ProviderFailure("cannot count axes from behind");
            });
            return {};
          };
        }
        kernels_.Add(std::move(def));
      }
    }
    const KernelRegistry& kernels() const override { return kernels_; }

   private:
    KernelRegistry kernels_;
  };
  const Tensor x = Tensor::Of<float>(Shape{2, 3}, {1, 7, 2, 9, 4, 5});
  for (const char* axis : {"1", "-1", "0", "-2"}) {
    const std::string text =
        std::string(
            "<ir_version: 10, opset_import: [\"\" : 21]> g (float[2, 3] x) => (float[2, 3] y)"
            " { [last] y = Hardmax <axis = ") +
        axis + "> (x) }";
    auto expected = Session::Create(ParseModelText(text).value(), OptionsOn({}))
                        .value()
                        ->Run({{"x", x}})
                        .value();
    auto session =
        Session::Create(ParseModelText(text).value(), OptionsOn({std::make_shared<Claims>()}))
            .value();
    EXPECT_TRUE(SameBits(session->Run({{"x", x}}).value(), expected)) << axis;
    EXPECT_EQ(session->fallback().record().has_value(), axis[0] == '-');
    if (axis[0] == '-') {
      EXPECT_EQ(session->fallback().record()->node, "Hardmax 'last'");
    }
  }
}

}  // namespace
}  // namespace caesura::testing
