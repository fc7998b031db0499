// SPDX-License-Identifier: Apache-2.0
#include "core/providers/counting_provider.h"

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/kernel.h"
#include "core/providers/counting_memory.h"
#include "core/providers/cpu_provider.h"

namespace caesura {
namespace {

using Memory = CountingDevice::Memory;

// They hand values on wherever these are, and run their bodies: on the host.
bool RunsBodies(const KernelDef& def) {
  return def.domain.empty() &&
         (def.op_type == "If" || def.op_type == "Loop" || def.op_type == "Scan");
}

bool HandlesOptionals(const KernelDef& def) { return def.op_type.rfind("Optional", 0) == 0; }

// Checks the arguments of a kernel's call.
struct Expected {
  std::string label;
  std::vector<bool> device_inputs, device_outputs;
};

Status CheckAddress(const Memory& memory, const Expected& expected, const void* address,
                    bool on_device, const std::string& what) {
  if (address == nullptr || memory.Owns(address) == on_device) return {};
  return Internal(expected.label +
                  (on_device ? " on the device is given host memory: "
                             : " is given device memory on the host: ") +
                  what);
}

Status Check(const Memory& memory, const Expected& expected, const KernelContext& context) {
  for (size_t i = 0; i < expected.device_inputs.size(); ++i) {
    RETURN_IF_ERROR(CheckAddress(memory, expected, context.Input<void>(static_cast<int>(i)),
                                 expected.device_inputs[i], "input " + std::to_string(i)));
  }
  for (size_t i = 0; i < expected.device_outputs.size(); ++i) {
    RETURN_IF_ERROR(CheckAddress(memory, expected, context.Output<void>(static_cast<int>(i)),
                                 expected.device_outputs[i], "output " + std::to_string(i)));
  }
  return {};
}

// The kernel with checks around it, and counted where `on_device`.
KernelDef Wrapped(const KernelDef& def, const std::shared_ptr<Memory>& memory, bool on_device) {
  KernelDef out = def;
  out.create = [def, memory, on_device](KernelInfo& info) -> Status {
    RETURN_IF_ERROR(def.create(info));
    ComputeFunction compute = info.TakeCompute();
    if (!compute) return {};
    Expected expected{info.node().Label(), {}, {}};
    for (int i = 0; i < info.input_count(); ++i) {
      expected.device_inputs.push_back(on_device && !def.IsHostInput(info.node(), i));
    }
    bool counts = false;
    for (int i = 0; i < info.output_count(); ++i) {
      expected.device_outputs.push_back(on_device && !KernelDef::Lists(def.host_outputs, i));
      counts |= expected.device_outputs.back();
    }
    info.SetCompute([=, compute = std::move(compute)](KernelContext& context) -> Status {
      RETURN_IF_ERROR(Check(*memory, expected, context));
      if (counts) memory->WithCounts([](DeviceCounts& all) { ++all.kernels; });
      if (!on_device) return compute(context);
      const Memory::Access access(*memory);
      return compute(context);
    });
    return {};
  };
  return out;
}

class CountingProvider : public ExecutionProvider {
 public:
  CountingProvider(const CountingOptions& options, std::shared_ptr<Memory> memory,
                   std::shared_ptr<const ExecutionProvider> cpu)
      : name_("counting:" + std::to_string(options.index)),
        memory_(std::move(memory)),
        cpu_(std::move(cpu)) {
    for (const KernelDef& def : cpu_->kernels().defs()) {
      const std::string op = (def.domain.empty() ? "" : def.domain + "::") + def.op_type;
      if (RunsBodies(def) || HandlesOptionals(def) || options.without.count(op) > 0) continue;
      kernels_.Add(Wrapped(def, memory_, true));
    }
  }
  const std::string& name() const override { return name_; }
  Device device() const override { return memory_->device(); }
  const KernelRegistry& kernels() const override { return kernels_; }
  Allocator& allocator() const override { return *memory_; }
  std::string rounding() const override { return BestIsaName(); }
  Status Copy(CopyKind kind, void* to, const void* from, size_t bytes) const override {
    return memory_->Copy(kind, to, from, bytes);
  }
  Status Synchronise() const override {
    memory_->WithCounts([](DeviceCounts& counts) { ++counts.synchronisations; });
    return {};
  }

 private:
  std::string name_;
  std::shared_ptr<Memory> memory_;
  std::shared_ptr<const ExecutionProvider> cpu_;  // its kernels are ours
  KernelRegistry kernels_;
};

// The CPU provider, with kernels that refuse the device's memory.
class CheckedHost : public ExecutionProvider {
 public:
  CheckedHost(std::shared_ptr<const ExecutionProvider> cpu, const std::shared_ptr<Memory>& memory)
      : cpu_(std::move(cpu)) {
    for (const KernelDef& def : cpu_->kernels().defs()) {
      kernels_.Add(RunsBodies(def) ? def : Wrapped(def, memory, false));
    }
  }
  const std::string& name() const override { return cpu_->name(); }
  Device device() const override { return cpu_->device(); }
  const KernelRegistry& kernels() const override { return kernels_; }
  Allocator& allocator() const override { return cpu_->allocator(); }
  std::string rounding() const override { return cpu_->rounding(); }

 private:
  std::shared_ptr<const ExecutionProvider> cpu_;
  KernelRegistry kernels_;
};

}  // namespace

CountingDevice::CountingDevice(const CountingOptions& options) {
  const Device device{DeviceType::kOther, static_cast<int16_t>(options.index)};
  memory_ = std::make_shared<Memory>(device, options.memory_bytes, options.close_pages);
  const auto cpu = MakeCpuProvider(options.more);
  providers_.push_back(std::make_shared<CountingProvider>(options, memory_, cpu));
  providers_.push_back(std::make_shared<CheckedHost>(cpu, memory_));
}

DeviceCounts CountingDevice::counts() const {
  return memory_->WithCounts([](DeviceCounts& counts) { return counts; });
}

void CountingDevice::Reset() {
  memory_->WithCounts([](DeviceCounts& counts) { counts = {}; });
}

}  // namespace caesura
