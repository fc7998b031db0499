// SPDX-License-Identifier: Apache-2.0
// A device for tests and for looking at placements where there is none: host memory of its own, the
// CPU's kernels, and counters. What would be wrong on a real device fails here: a kernel of the
// device that is given host memory (but for its declared host inputs and outputs), a kernel of the
// host that is given the device's, a copy in the wrong direction.
#ifndef CAESURA_CORE_PROVIDERS_COUNTING_PROVIDER_H_
#define CAESURA_CORE_PROVIDERS_COUNTING_PROVIDER_H_

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "core/kernels/kernel_registry.h"
#include "core/providers/execution_provider.h"

namespace caesura {

struct CountingOptions {
  int index = 0;  // of the device: {DeviceType::kOther, index}, provider "counting:<index>"
  // Ops without a kernel on the device: "ArgMax", "ai.caesura::SumTo". If, Loop, Scan and what
  // handles sequences never have one.
  std::set<std::string> without = {};
  // Kernels beside the built-in ones, as for MakeCpuProvider; on both sides.
  std::function<void(KernelRegistry&)> more = {};
  // The size of the device's memory; a tensor that does not fit fails as on a real device, with
  // kProviderFailure.
  size_t memory_bytes = size_t{1} << 36;
  // True keeps the device's pages closed while none of its kernels and copies runs: any other
  // access ends the process.
  bool close_pages = false;
};

// All of them since the start, or since the last Reset.
struct DeviceCounts {
  uint64_t kernels = 0;  // that made something on the device
  uint64_t copies_to_device = 0, bytes_to_device = 0;
  uint64_t copies_to_host = 0, bytes_to_host = 0;
  uint64_t copies_within = 0;
  uint64_t synchronisations = 0;
};

// Thread safety: all methods from any thread.
class CountingDevice {
 public:
  explicit CountingDevice(const CountingOptions& options);

  // The device, then the host: what a session or a plan takes.
  const ProviderList& providers() const { return providers_; }
  Device device() const { return providers_.front()->device(); }
  DeviceCounts counts() const;
  void Reset();

  class Memory;

 private:
  std::shared_ptr<Memory> memory_;
  ProviderList providers_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_PROVIDERS_COUNTING_PROVIDER_H_
