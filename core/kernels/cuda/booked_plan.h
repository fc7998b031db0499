// SPDX-License-Identifier: Apache-2.0
// A plan of cuDNN's as a kernel holds it: with the device, and its workspace among the kernel's
// scratch memory.
#ifndef CAESURA_CORE_KERNELS_CUDA_BOOKED_PLAN_H_
#define CAESURA_CORE_KERNELS_CUDA_BOOKED_PLAN_H_

#include <memory>
#include <utility>
#include <vector>

#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_context.h"

namespace caesura {

// Thread safety: Run from any thread. Copies share the plan.
class BookedPlan {
 public:
  // As CudaDevice::Plan.
  static Result<BookedPlan> Book(KernelInfo& info, const CudaDevicePtr& device,
                                 const DnnGraph& graph) {
    ASSIGN_OR_RETURN(DnnPlan plan, device->Plan(graph));
    const size_t workspace = info.BookScratch(plan.workspace_bytes());
    return BookedPlan(device, std::make_shared<DnnPlan>(std::move(plan)), workspace);
  }
  Status Run(KernelContext& context, const std::vector<void*>& tensors) const {
    return device_->Run(*plan_, tensors, context.Scratch<void>(workspace_));
  }

 private:
  BookedPlan(CudaDevicePtr device, std::shared_ptr<const DnnPlan> plan, size_t workspace)
      : device_(std::move(device)), plan_(std::move(plan)), workspace_(workspace) {}

  CudaDevicePtr device_;
  std::shared_ptr<const DnnPlan> plan_;
  size_t workspace_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CUDA_BOOKED_PLAN_H_
