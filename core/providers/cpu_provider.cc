// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/kernel_registry.h"
#include "core/ops/cpu_kernels.h"
#include "core/providers/cpu_provider.h"

#include "core/kernels/simd/best_isa.h"

namespace caesura {
namespace {

class CpuProvider : public ExecutionProvider {
 public:
  explicit CpuProvider(const std::function<void(KernelRegistry&)>& more)
      : allocator_(MakePooledAllocator(HostAllocator())) {
    RegisterCpuKernels(kernels_);
    if (more) more(kernels_);
  }
  const std::string& name() const override { return name_; }
  Device device() const override { return {}; }
  const KernelRegistry& kernels() const override { return kernels_; }
  Allocator& allocator() const override { return *allocator_; }
  std::string rounding() const override { return BestIsaName(); }

 private:
  std::string name_ = kCpuProviderName;
  KernelRegistry kernels_;
  std::shared_ptr<Allocator> allocator_;
};

}  // namespace

std::shared_ptr<const ExecutionProvider> MakeCpuProvider(
    const std::function<void(KernelRegistry&)>& more) {
  return std::make_shared<CpuProvider>(more);
}

}  // namespace caesura
