// SPDX-License-Identifier: Apache-2.0
// A provider runs nodes: it has a device, its memory and its kernels.
#ifndef CAESURA_CORE_PROVIDERS_EXECUTION_PROVIDER_H_
#define CAESURA_CORE_PROVIDERS_EXECUTION_PROVIDER_H_

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace caesura {

class KernelRegistry;    // core/kernels/kernel_registry.h
class SubgraphCompiler;  // subgraph_compiler.h

// The direction of a copy between the host and a device, or within the device.
enum class CopyKind : uint8_t { kToDevice, kToHost, kWithin };

// Immutable once made. Thread safety: all methods from any thread.
class ExecutionProvider {
 public:
  virtual ~ExecutionProvider() = default;
  virtual const std::string& name() const = 0;  // "CPUExecutionProvider"
  virtual Device device() const = 0;
  virtual const KernelRegistry& kernels() const = 0;
  virtual Allocator& allocator() const = 0;
  // The machine's part in rounding (an instruction set): part of a plan's fingerprint.
  virtual std::string rounding() const { return {}; }
  // Bytes between the host and this provider's device, or within it; in order with the device's
  // work, and perhaps not done yet when it returns. The host may read what came to it after
  // Synchronise. Host memory that is read must stay as it is until the call returns, or, where it
  // is page-locked, until Synchronise.
  virtual Status Copy(CopyKind, void* to, const void* from, size_t bytes) const {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return {};
  }
  // The stream on which the device's work of this thread is put and Copy is in order with it, as
  // the device's library has it (a cudaStream_t); null where kernels are done when they return.
  virtual void* stream() const { return nullptr; }
  // Waits for all work of the device that was begun before.
  virtual Status Synchronise() const { return {}; }
  // For providers that take parts of a graph and run each of them as a whole
  // (core/providers/subgraph_compiler.h); null: kernels are all that this one has. Lives as long as
  // the provider.
  virtual const SubgraphCompiler* compiler() const { return nullptr; }
};

// In order of preference.
using ProviderList = std::vector<std::shared_ptr<const ExecutionProvider>>;

}  // namespace caesura

#endif  // CAESURA_CORE_PROVIDERS_EXECUTION_PROVIDER_H_
