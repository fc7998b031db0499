// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/kernel_registry.h"
#include "core/ops/cuda_kernels.h"
#include "core/providers/cuda/cuda_provider.h"

#include "core/base/status_macros.h"
#include "core/cuda/cuda_device.h"
#include "core/providers/cuda/cuda_copies.h"
#include "core/providers/write_gate.h"

namespace caesura {
namespace {

class CudaProvider : public ExecutionProvider, public CopiesTogether, public WriteGate {
 public:
  CudaProvider(std::shared_ptr<CudaDevice> device, const CudaOptions& options)
      : device_(std::move(device)) {
    RegisterCudaKernels(kernels_, device_);
    if (options.more) options.more(kernels_, device_);
  }
  const std::string& name() const override { return name_; }
  Device device() const override { return device_->device(); }
  const KernelRegistry& kernels() const override { return kernels_; }
  Allocator& allocator() const override { return *device_; }
  std::string rounding() const override {
    return device_->architecture() + (device_->tf32() ? " TF32" : "");
  }
  Status Copy(CopyKind kind, void* to, const void* from, size_t bytes) const override {
    switch (kind) {
      case CopyKind::kToDevice: return device_->CopyToDevice(to, from, bytes);
      case CopyKind::kToHost: return device_->CopyToHost(to, from, bytes);
      case CopyKind::kWithin: return device_->CopyWithin(to, from, bytes);
    }
    return Internal("no such kind of copy");
  }
  Status CopyAll(const std::vector<DeviceCopy>& copies) const override {
    return CopyAllOnCuda(device_, copies);
  }
  bool Holds(const KernelDef& kernel) const override { return LooksAtGate(kernel); }
  Result<bool> CloseGate() const override { return device_->CloseGate(); }
  Status OpenGate(bool write) const override { return device_->OpenGate(write); }
  bool was_interrupted() const override { return device_->gate_was_interrupted(); }
  Status WaitForHeld() const override { return device_->WaitForHeld(); }
  std::shared_ptr<Buffer> HostMemory(size_t bytes) const override {
    return device_->HostMemory(bytes);
  }
  // The caller may use the driver next, on a thread that is new to the device. Where the context is
  // lost, that call says so.
  void* stream() const override {
    static_cast<void>(device_->MakeCurrent());
    return device_->stream();
  }
  Status Synchronise() const override { return device_->Synchronise(); }
  Status Order(CUstream before, CUstream after) const {
    RETURN_IF_ERROR(device_->MakeCurrent());
    const auto& driver = device_->libraries().driver;
    CUevent event = nullptr;
    CUresult result = driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) return device_->Failure("cuEventCreate", result);
    const char* call = "cuEventRecord";
    result = driver.cuEventRecord(event, before);
    if (result == CUDA_SUCCESS) {
      call = "cuStreamWaitEvent";
      result = driver.cuStreamWaitEvent(after, event, CU_EVENT_WAIT_DEFAULT);
    }
    driver.cuEventDestroy(event);  // the driver keeps it until it has come
    return result == CUDA_SUCCESS ? Status() : device_->Failure(call, result);
  }

 private:
  const std::string name_ = kCudaProviderName;
  const std::shared_ptr<CudaDevice> device_;
  KernelRegistry kernels_;
};

}  // namespace

Result<std::shared_ptr<const ExecutionProvider>> MakeCudaProvider(const CudaOptions& options) {
  ASSIGN_OR_RETURN(auto device, CudaDevice::Create(options));
  return std::shared_ptr<const ExecutionProvider>(
      std::make_shared<CudaProvider>(std::move(device), options));
}

Result<int> CudaDeviceCount(const CudaLibraryNames& names) {
  ASSIGN_OR_RETURN(const auto libraries, OpenCudaLibraries(names));
  int count = 0;
  if (libraries->driver.cuInit(0) != CUDA_SUCCESS ||
      libraries->driver.cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0)
    return Unsupported("the NVIDIA driver finds no device");
  return count;
}

Status OrderStreams(const ExecutionProvider& provider, void* before, void* after) {
  const auto* cuda = dynamic_cast<const CudaProvider*>(&provider);
  if (cuda == nullptr || before == after) return {};
  return cuda->Order(static_cast<CUstream>(before), static_cast<CUstream>(after));
}

}  // namespace caesura
