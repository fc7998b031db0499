// SPDX-License-Identifier: Apache-2.0
// A plan of cuDNN's as a kernel holds it: with the device, and its workspace among the kernel's
// scratch memory.
#ifndef CAESURA_CORE_KERNELS_CUDA_BOOKED_PLAN_H_
#define CAESURA_CORE_KERNELS_CUDA_BOOKED_PLAN_H_

#include <memory>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/kernel.h"

namespace caesura {

// Thread safety: Run from any thread. Copies share the plan.
class BookedPlan {
 public:
  // As CudaDevice::Plan. A graph that cuDNN refuses is logged (CAESURA_VERBOSE=1), with the node.
  static Result<BookedPlan> Book(KernelInfo& info, const CudaDevicePtr& device,
                                 const DnnGraph& graph) {
    Result<DnnPlan> plan = device->Plan(graph);
    if (!plan.ok()) {
      LogVerbose(1, info.node().Label() + ": " + plan.status().message());
      return plan.status();
    }
    const size_t workspace = info.BookScratch(plan->workspace_bytes());
    return BookedPlan(device, std::make_shared<DnnPlan>(*std::move(plan)), workspace);
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
