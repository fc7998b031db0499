// SPDX-License-Identifier: Apache-2.0
// Many copies within a device at once.
#ifndef CAESURA_CORE_PROVIDERS_COPY_ALL_H_
#define CAESURA_CORE_PROVIDERS_COPY_ALL_H_

#include <vector>

#include "core/providers/execution_provider.h"

namespace caesura {

// Bytes from one place in a device's memory to another.
struct DeviceCopy {
  void* to;
  const void* from;
  size_t bytes;
};

// A provider inherits it, too, if each copy costs it a launch and it can make many by one.
class CopiesTogether {
 public:
  virtual ~CopiesTogether() = default;
  // Makes all copies, as the function CopyAll promises.
  virtual Status CopyAll(const std::vector<DeviceCopy>& copies) const = 0;
};

// Copies within the provider's device, in order with the device's work, as
// ExecutionProvider::Copy makes each of them. Fails with what the provider's copies fail with.
// REQUIRES: no copy writes what another one reads or writes.
//
// Thread safety: from any thread.
Status CopyAll(const ExecutionProvider& provider, const std::vector<DeviceCopy>& copies);

}  // namespace caesura

#endif  // CAESURA_CORE_PROVIDERS_COPY_ALL_H_
