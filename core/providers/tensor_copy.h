// SPDX-License-Identifier: Apache-2.0
// A tensor's elements on the host, and back: wherever a tensor lies, by the provider that serves
// its device. All of it is done when the call returns.
#ifndef CAESURA_CORE_PROVIDERS_TENSOR_COPY_H_
#define CAESURA_CORE_PROVIDERS_TENSOR_COPY_H_

#include "core/providers/execution_provider.h"
#include "core/tensor/tensor.h"

namespace caesura {

// The tensor itself where it is on the host, otherwise a copy there. Fails with kInvalidArgument
// where none of the providers serves the tensor's device.
Result<Tensor> ToHost(const Tensor& tensor, const ProviderList& providers);
// A copy on the host in any case.
Result<Tensor> HostCopyOf(const Tensor& tensor, const ProviderList& providers);
// Copies the elements of `from` to `to`. REQUIRES: equal dtypes and shapes; one of the two is on
// the host.
Status CopyElements(const Tensor& from, const Tensor& to, const ProviderList& providers);

}  // namespace caesura

#endif  // CAESURA_CORE_PROVIDERS_TENSOR_COPY_H_
