// SPDX-License-Identifier: Apache-2.0
#include "core/providers/tensor_copy.h"

#include <algorithm>
#include <cassert>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

Result<const ExecutionProvider*> ServerOf(Device device, const ProviderList& providers) {
  const auto found = std::find_if(providers.begin(), providers.end(),
                                  [&](const auto& p) { return p->device() == device; });
  if (found != providers.end()) return found->get();
  return InvalidArgument("a tensor is on " + device.ToString() + ", which no provider serves");
}

}  // namespace

Result<Tensor> ToHost(const Tensor& tensor, const ProviderList& providers) {
  return tensor.device().is_host() ? Result<Tensor>(tensor) : HostCopyOf(tensor, providers);
}

Result<Tensor> HostCopyOf(const Tensor& tensor, const ProviderList& providers) {
  if (tensor.device().is_host()) return tensor.Clone();
  ASSIGN_OR_RETURN(Tensor here, Tensor::Allocate(tensor.dtype(), tensor.shape()));
  RETURN_IF_ERROR(CopyElements(tensor, here, providers));
  return here;
}

Status CopyElements(const Tensor& from, const Tensor& to, const ProviderList& providers) {
  assert(from.dtype() == to.dtype() && from.shape() == to.shape());
  if (from.device().is_host() && to.device().is_host()) {
    CopyElements(from.dtype(), from.raw(), to.raw(), from.elements());
    return {};
  }
  const bool to_host = to.device().is_host();
  assert(to_host || from.device().is_host());
  ASSIGN_OR_RETURN(const ExecutionProvider* provider,
                   ServerOf(to_host ? from.device() : to.device(), providers));
  RETURN_IF_ERROR(provider->Copy(to_host ? CopyKind::kToHost : CopyKind::kToDevice, to.raw(),
                                 from.raw(), from.bytes()));
  return provider->Synchronise();
}

}  // namespace caesura
