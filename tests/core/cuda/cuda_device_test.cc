// SPDX-License-Identifier: Apache-2.0
#include "core/cuda/cuda_device.h"

#include <chrono>
#include <thread>

#include "core/base/log.h"
#include "core/cuda/cuda_libraries.h"
#include "tests/core/providers/cuda/standin_cuda.h"

namespace caesura::testing {
namespace {

class CudaDeviceGate : public StandinCuda {
 protected:
  // Two gates, with no wait in between: whether kernels between each and the next one may not
  // write. The second one is opened by open().
  template <typename Open>
  static std::vector<unsigned> Forbidden(const std::shared_ptr<CudaDevice>& device,
                                         const Open& open) {
    std::vector<unsigned> out(2);
    const auto seen = device->Allocate(2 * sizeof(unsigned)).value();
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(device->CloseGate().value());
      EXPECT_TRUE(device
                      ->CopyWithin(static_cast<unsigned*>(seen->data()) + i, device->gate(),
                                   sizeof(unsigned))
                      .ok());
      if (i == 0) EXPECT_TRUE(device->OpenGate(true).ok());
      else open();
    }
    EXPECT_TRUE(device->CopyToHost(out.data(), seen->data(), 2 * sizeof(unsigned)).ok());
    EXPECT_TRUE(device->Synchronise().ok());
    return out;
  }
};

// A step that fails is not the one before it, whose updates may still be on their way.
TEST_F(CudaDeviceGate, ForbidsNoEarlierWrites) {
  const auto device = CudaDevice::Create(Unchecked()).value();
  EXPECT_EQ(Forbidden(device, [&] { EXPECT_TRUE(device->OpenGate(true).ok()); }),
            (std::vector<unsigned>{0, 0}));
  EXPECT_EQ(Forbidden(device, [&] { EXPECT_TRUE(device->OpenGate(false).ok()); }),
            (std::vector<unsigned>{0, 1}));
  EXPECT_EQ(Forbidden(device,
                      [&] {
                        while (!device->gate_was_interrupted())
                          std::this_thread::sleep_for(std::chrono::milliseconds(10));
                        EXPECT_FALSE(device->OpenGate(true).ok());
                        EXPECT_TRUE(device->OpenGate(false).ok());
                      }),
            (std::vector<unsigned>{0, 1}));
  EXPECT_FALSE(device->CloseGate().value());
}

// A library that is missing is not missed in silence (report().lost of Python shows it).
TEST_F(StandinCuda, ToldThatItDoesWithoutCudnn) {
  if (OpenCudnn("").ok()) GTEST_SKIP() << "cuDNN is installed here";
  CudaOptions options = Unchecked();
  options.libraries.cudnn.clear();
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(CudaDevice::Create(options).ok());
  const std::string told = ::testing::internal::GetCapturedStderr();
  const std::string why = LostParts().at("cuDNN");
  EXPECT_NE(why.find("libcudnn.so.9"), std::string::npos) << why;
  EXPECT_NE(why.find("convolutions on the CPU"), std::string::npos) << why;
  EXPECT_LE(told.size(), ("caesura: warning: cuDNN is not used: " + why + "\n").size())
      << "told twice";
}

}  // namespace
}  // namespace caesura::testing
