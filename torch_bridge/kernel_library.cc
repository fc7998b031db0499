// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/kernel_library.h"

#include <torch/headeronly/version.h>

#include <atomic>
#include <cassert>
#include <string_view>

#include "core/kernels/kernel_registry.h"
#include "torch_bridge/aten_op.h"
#include "torch_bridge/c10d_communicator.h"
#include "torch_bridge/captured_call.h"
#include "torch_bridge/draws.h"
#include "torch_bridge/provider/torch_provider.h"
#include "torch_bridge/torch_stream.h"

namespace {

std::atomic<bool> is_accepted = false;  // the PyTorch that is there

}  // namespace

extern "C" const char* CaesuraTorchKernels(const char* torch_version,
                                           caesura::KernelRegistry* registry) {
  // All patch releases of a minor version fit ("2.13."): they have one binary interface.
  const std::string_view built = TORCH_VERSION;
  const std::string_view minor = built.substr(0, built.find('.', built.find('.') + 1) + 1);
  if (!std::string_view(torch_version).starts_with(minor)) {
    return "libcaesura_torch was built with PyTorch " TORCH_VERSION
           " and works with patch releases of that minor version only";
  }
  caesura::torch::RegisterAtenKernels(*registry);
  caesura::torch::RegisterCapturedCalls();
  caesura::torch::RegisterDraws();
  is_accepted = true;
  return nullptr;
}

extern "C" caesura::Result<std::shared_ptr<const caesura::ExecutionProvider>> CaesuraTorchProvider(
    const std::string& device, const std::function<void(caesura::KernelRegistry&)>& more) {
  assert(is_accepted);
  if (!device.empty()) return caesura::torch::MakeTorchDeviceProvider(device);
  return caesura::torch::MakeTorchProvider(more);
}

extern "C" caesura::Result<std::unique_ptr<caesura::Communicator>> CaesuraTorchCommunicator(
    const std::string& group_name) {
  assert(is_accepted);
  return caesura::torch::C10dCommunicator(group_name);
}

extern "C" caesura::Result<void*> CaesuraTorchStream(caesura::Device device) {
  assert(is_accepted);
  return caesura::torch::CurrentTorchStream(device);
}

extern "C" caesura::Result<std::shared_ptr<void>> CaesuraTorchMemory(caesura::Device device,
                                                                     size_t bytes) {
  assert(is_accepted);
  return caesura::torch::AllocateByTorch(device, bytes);
}
