// SPDX-License-Identifier: Apache-2.0
// A device with a gate before its updates, where there is none: the kernel Accumulate of a counting
// device waits until the host opens the gate.
#ifndef CAESURA_TESTS_CORE_EXECUTE_GATED_PROVIDER_H_
#define CAESURA_TESTS_CORE_EXECUTE_GATED_PROVIDER_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/providers/counting_provider.h"
#include "core/providers/write_gate.h"
#include "tests/core/execute/tiny_provider.h"

namespace caesura::testing {

// The gate's calls, and the updates that wait.
struct GateRecord {
  bool may_close = true;
  bool closed = false;
  std::vector<std::function<void()>> held;
  std::vector<std::string> calls;
};

// test.Accumulate (buffer, x) -> buffer + x, in place: at once, or when the gate is opened.
inline void AddHeldAccumulate(KernelRegistry& registry, GateRecord* gate) {
  registry.Add({.op_type = "Accumulate",
                .domain = "test",
                .aliases = {InPlace(0, 0)},
                .create = [gate](KernelInfo& info) -> Status {
                  const int64_t count = info.InputShape(0).elements();
                  info.SetOutput(0, DType::kFloat32, info.InputShape(0));
                  info.SetCompute([gate, count](KernelContext& context) {
                    const auto add = [count, x = context.Input<float>(1),
                                      to = context.Output<float>(0)] {
                      for (int64_t i = 0; i < count; ++i) to[i] += x[i];
                    };
                    if (gate->closed) gate->held.push_back(add);
                    else add();
                  });
                  return {};
                }});
}

class GatedProvider : public ExecutionProvider, public WriteGate {
 public:
  GatedProvider(std::shared_ptr<const ExecutionProvider> device, GateRecord* gate)
      : device_(std::move(device)), gate_(*gate) {}
  const std::string& name() const override { return device_->name(); }
  Device device() const override { return device_->device(); }
  const KernelRegistry& kernels() const override { return device_->kernels(); }
  Allocator& allocator() const override { return device_->allocator(); }
  Status Copy(CopyKind kind, void* to, const void* from, size_t bytes) const override {
    return device_->Copy(kind, to, from, bytes);
  }
  Status Synchronise() const override { return device_->Synchronise(); }

  bool Holds(const KernelDef& kernel) const override { return kernel.op_type == "Accumulate"; }
  Result<bool> CloseGate() const override {
    gate_.calls.push_back("close");
    return gate_.closed = gate_.may_close;
  }
  Status OpenGate(bool write) const override {
    gate_.calls.push_back(write ? "open to write" : "open");
    gate_.closed = false;
    for (const auto& update : gate_.held) {
      if (write) update();
    }
    gate_.held.clear();
    return {};
  }
  bool was_interrupted() const override { return false; }
  Status WaitForHeld() const override {
    gate_.calls.push_back("wait");
    return {};
  }
  std::shared_ptr<Buffer> HostMemory(size_t bytes) const override {
    return HostAllocator().Allocate(bytes).value();
  }

 private:
  const std::shared_ptr<const ExecutionProvider> device_;
  GateRecord& gate_;
};

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_EXECUTE_GATED_PROVIDER_H_
