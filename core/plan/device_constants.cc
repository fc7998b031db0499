// SPDX-License-Identifier: Apache-2.0
#include "core/plan/device_constants.h"

#include "core/base/status_macros.h"

namespace caesura {

Result<Tensor> CopyToDevice(const Tensor& tensor, const ExecutionProvider& provider) {
  ASSIGN_OR_RETURN(Tensor copy,
                   Tensor::Allocate(tensor.dtype(), tensor.shape(), provider.allocator()));
  RETURN_IF_ERROR(provider.Copy(CopyKind::kToDevice, copy.raw(), tensor.raw(), tensor.bytes()));
  return copy;
}

Result<Tensor> DeviceConstants::Get(const Value* value, const Tensor& tensor,
                                    const ExecutionProvider& provider) {
  std::lock_guard<std::mutex> lock(mutex_);
  Tensor& kept = copies_[{value, &provider}];
  if (!kept.defined()) {
    ASSIGN_OR_RETURN(kept, CopyToDevice(tensor, provider));
  }
  return kept;
}

}  // namespace caesura
