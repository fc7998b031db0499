// SPDX-License-Identifier: Apache-2.0
#include "core/providers/cuda/cuda_provider.h"

#include "core/base/status_macros.h"
#include "core/kernels/cuda/kernel_list.h"
#include "core/cuda/cuda_device.h"

namespace caesura {
namespace {

class CudaProvider : public ExecutionProvider {
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
  std::string rounding() const override { return device_->architecture(); }
  Status Copy(CopyKind kind, void* to, const void* from, size_t bytes) const override {
    switch (kind) {
      case CopyKind::kToDevice: return device_->CopyToDevice(to, from, bytes);
      case CopyKind::kToHost: return device_->CopyToHost(to, from, bytes);
      case CopyKind::kWithin: return device_->CopyWithin(to, from, bytes);
    }
    return Internal("no such kind of copy");
  }
  void* stream() const override { return device_->stream(); }
  Status Synchronise() const override { return device_->Synchronise(); }

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

}  // namespace caesura
