// SPDX-License-Identifier: Apache-2.0
// Copies of a graph's initializers on devices, made once and shared by all plans of the graph and
// its bodies.
//
// Thread safety: all methods from any thread.
#ifndef CAESURA_CORE_PLAN_DEVICE_CONSTANTS_H_
#define CAESURA_CORE_PLAN_DEVICE_CONSTANTS_H_

#include <map>
#include <mutex>
#include <utility>

#include "core/graph/graph.h"
#include "core/providers/execution_provider.h"

namespace caesura {

// A copy of a host tensor on the provider's device.
Result<Tensor> CopyToDevice(const Tensor& tensor, const ExecutionProvider& provider);

// Owns the copies. The graph and the providers outlive it.
class DeviceConstants {
 public:
  // The copy of `value`'s initializer `tensor` on the provider's device, made if need be.
  Result<Tensor> Get(const Value* value, const Tensor& tensor, const ExecutionProvider& provider);

 private:
  std::mutex mutex_;
  std::map<std::pair<const Value*, const ExecutionProvider*>, Tensor> copies_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_DEVICE_CONSTANTS_H_
