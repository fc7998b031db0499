// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/torch_stream.h"

#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/base/status_macros.h"
#include "core/providers/cuda/cuda_provider.h"
#include "torch_bridge/torch_tensor.h"

namespace caesura::torch {
namespace {

// PyTorch names CUDA's default stream by null, the driver also by this.
void* Named(void* stream) { return stream != nullptr ? stream : reinterpret_cast<void*>(1); }

Status Order(const ExecutionProvider& provider, bool torch_first) {
  if (provider.device().is_host()) return {};
  ASSIGN_OR_RETURN(void* const theirs, CurrentTorchStream(provider.device()));
  void* const ours = Named(provider.stream());
  return OrderStreams(provider, torch_first ? theirs : ours, torch_first ? ours : theirs);
}

}  // namespace

Result<void*> CurrentTorchStream(Device device) try {
  const std::optional<c10::Device> of = TorchDeviceOf(device);
  if (!of) return Unsupported("PyTorch has no device " + device.ToString());
  const c10::impl::VirtualGuardImpl guard(of->type());
  return Named(guard.getStreamNativeHandle(guard.getStream(*of)));
} catch (const std::exception& error) {
  return Status(StatusCode::kProviderFailure,
                std::string("PyTorch's current stream is not known: ") + error.what());
}

Result<std::shared_ptr<void>> AllocateByTorch(Device device, size_t bytes) try {
  const std::optional<c10::Device> of = TorchDeviceOf(device);
  if (!of) return Unsupported("PyTorch has no device " + device.ToString());
  const c10::DeviceGuard device_guard(*of);
  const c10::impl::VirtualGuardImpl guard(of->type());
  const c10::StreamGuard stream_guard(guard.getDefaultStream(*of));
  auto data = std::make_shared<c10::DataPtr>(c10::GetAllocator(of->type())->allocate(bytes));
  return std::shared_ptr<void>(data, data->get());
} catch (const std::exception& error) {
  return Status(StatusCode::kProviderFailure, error.what());
}

Result<std::shared_ptr<const ExecutionProvider>> MakeCudaProviderOnTorch(CudaOptions options) {
  const Device device{DeviceType::kCuda, static_cast<int16_t>(options.device_id)};
  options.stream = Named(nullptr);
  options.allocate = [device](size_t bytes) { return AllocateByTorch(device, bytes); };
  return MakeCudaProvider(options);
}

Status WaitForTorch(const ExecutionProvider& provider) { return Order(provider, true); }

Status TorchWaits(const ExecutionProvider& provider) { return Order(provider, false); }

Tensor LentToTorch(Tensor tensor, std::shared_ptr<const ExecutionProvider> provider) {
  if (tensor.device().is_host()) return tensor;
  const std::shared_ptr<Buffer>& owner = tensor.buffer();
  const size_t offset =
      static_cast<size_t>(static_cast<char*>(tensor.raw()) - static_cast<char*>(owner->data()));
  auto buffer = std::make_shared<Buffer>(owner->data(), owner->size(), owner->device(),
                                         [owner, provider = std::move(provider)](void*) {
                                           // A device that has failed has no work to wait for.
                                           static_cast<void>(WaitForTorch(*provider));
                                         });
  return Tensor(tensor.dtype(), tensor.shape(), std::move(buffer), offset);
}

}  // namespace caesura::torch
