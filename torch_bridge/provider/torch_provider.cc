// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/provider/torch_provider.h"

#include <ATen/Functions.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/headeronly/version.h>

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "torch_bridge/aten_call.h"
#include "torch_bridge/aten_op.h"
#include "torch_bridge/provider/torch_kernel.h"
#include "torch_bridge/provider/torch_ops.h"
#include "torch_bridge/torch_tensor.h"

namespace caesura::torch {
namespace {

class TorchAllocator : public Allocator {
 public:
  explicit TorchAllocator(c10::Device device) : torch_device_(device), device_(*DeviceOf(device)) {}
  Result<std::shared_ptr<Buffer>> Allocate(size_t size) override {
    std::shared_ptr<Buffer> buffer;
    const Status allocated = Guarded("PyTorch's allocator:", [&] {
      const c10::DeviceGuard guard(torch_device_);
      c10::DataPtr data =
          c10::GetAllocator(torch_device_.type())->allocate(std::max<size_t>(size, 1));
      void* bytes = data.get();
      const c10::DeleterFnPtr deleter = data.get_deleter();
      buffer = std::make_shared<Buffer>(
          bytes, size, device_,
          [deleter, context = data.get_context()](void*) { deleter(context); });
      static_cast<void>(data.release_context());
      return Status();
    });
    if (!allocated.ok() && !device_.is_host()) return ProviderFailure(allocated.message());
    RETURN_IF_ERROR(allocated);
    return buffer;
  }
  Device device() const override { return device_; }

 private:
  const c10::Device torch_device_;
  const Device device_;
};

// The results of a call whose values nobody needs: without bytes, or, for operators that have no
// kernel for that, on zeros.
Tensors TrialResults(const TorchRun& run, const TensorSpecs& specs) {
  Tensors results;
  const auto trial = [&](const Tensors& inputs) { return results = run(inputs), Status(); };
  if (Guarded("", [&] { return trial(MetaInputs(specs)); }).ok()) return results;
  Tensors zeros(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto options = at::TensorOptions().dtype(specs[i].type).device(specs[i].device);
    if (specs[i].present) zeros[i] = at::zeros({}, options).expand(specs[i].shape.dims());
  }
  return run(zeros);
}

Status CreateTorchOp(const TorchOp& op, c10::Device device, KernelInfo& info) {
  const std::string label = info.node().Label();
  DispatchScope scope(/*with_gradients=*/false);
  TensorSpecs specs;
  TorchRun run;
  // The next kernel is asked where PyTorch refuses or does not understand; it has the
  // better words for errors.
  const Status planned = Guarded(label, [&]() -> Status {
    const auto on_host = [&](int i) { return KernelDef::Lists(op.host_inputs, i); };
    ASSIGN_OR_RETURN(specs, InputSpecs(info, device, on_host));
    run = op.make(info);
    if (!run) return info.Refuse("PyTorch has no equivalent of these attributes and shapes");
    return PlanResults(info, TrialResults(run, specs));
  });
  if (!planned.ok()) return Declined(planned.message());
  info.SetCompute([=, outputs = PlannedOutputs(info, device)](KernelContext& context) {
    DispatchScope scope(/*with_gradients=*/false);
    return Guarded(label, [&] {
      return CopyResults(label, context, outputs,
                         run(BorrowInputs(context, specs, 0, specs.size())));
    });
  });
  return {};
}

class TorchProvider : public ExecutionProvider {
 public:
  TorchProvider(c10::Device device, const std::function<void(KernelRegistry&)>& more)
      : torch_device_(device),
        device_(*DeviceOf(device)),
        allocator_(std::make_shared<TorchAllocator>(device)) {
    for (auto* family : {ElementwiseTorchOps, MovementTorchOps, NnTorchOps}) {
      for (TorchOp& op : family()) {
        KernelDef def{.op_type = op.op_type,
                      .since = op.since,
                      .types = op.types,
                      .typed_input = op.typed_input,
                      .host_inputs = op.host_inputs};
        def.create = [op = std::move(op), device](KernelInfo& info) {
          return CreateTorchOp(op, device, info);
        };
        kernels_.Add(std::move(def));
      }
    }
    RegisterAtenKernels(kernels_, device);
    if (more) more(kernels_);
  }
  const std::string& name() const override { return name_; }
  Device device() const override { return device_; }
  const KernelRegistry& kernels() const override { return kernels_; }
  Allocator& allocator() const override { return *allocator_; }
  std::string rounding() const override {
    return "PyTorch " TORCH_VERSION " on " + torch_device_.str();
  }

  Status Copy(CopyKind kind, void* to, const void* from, size_t bytes) const override {
    if (device_.is_host()) return ExecutionProvider::Copy(kind, to, from, bytes);
    return Failing("a copy", [&] {
      const DispatchScope scope(/*with_gradients=*/false);
      const Shape shape({static_cast<int64_t>(bytes)});
      const auto place = [&](bool on_device) {
        return on_device ? torch_device_ : c10::Device(c10::kCPU);
      };
      const at::Tensor source = BorrowBytes(const_cast<void*>(from), at::kByte, shape,
                                            place(kind != CopyKind::kToDevice));
      BorrowBytes(to, at::kByte, shape, place(kind != CopyKind::kToHost))
          .copy_(source, /*non_blocking=*/true);
    });
  }
  // Null where the device's streams have no handle.
  void* stream() const override {
    void* handle = nullptr;
    const auto get = [&] {
      handle = guard()->getStreamNativeHandle(guard()->getStream(torch_device_));
    };
    return device_.is_host() || !Failing("its stream", get).ok() ? nullptr : handle;
  }
  Status Synchronise() const override {
    if (device_.is_host()) return {};
    return Failing("a wait", [&] { guard()->synchronizeDevice(torch_device_.index()); });
  }

 private:
  const c10::impl::DeviceGuardImplInterface* guard() const {
    return c10::impl::getDeviceGuardImpl(torch_device_.type());
  }

  // An exception of the device is its failure, not the caller's.
  template <typename Call>
  Status Failing(const char* what, Call call) const {
    const Status done =
        Guarded(torch_device_.str() + ": " + what + ":", [&] { return call(), Status(); });
    return done.ok() ? done : ProviderFailure(done.message());
  }

  std::string name_ = kTorchProviderName;
  const c10::Device torch_device_;
  const Device device_;
  KernelRegistry kernels_;
  std::shared_ptr<Allocator> allocator_;
};

// With an index that PyTorch has.
Result<c10::Device> FindDevice(const std::string& name) {
  std::optional<c10::Device> device;
  const Status found = Guarded("the torch provider:", [&]() -> Status {
    device.emplace(name);
    const auto absent = [&] {
      return Unsupported("PyTorch has no device '" + name + "' in this process");
    };
    if (!DeviceOf(*device) || !c10::impl::hasDeviceGuardImpl(device->type())) return absent();
    const auto* guard = c10::impl::getDeviceGuardImpl(device->type());
    if (guard->deviceCount() == 0) return absent();
    if (!device->has_index() && !device->is_cpu()) device = guard->getDevice();
    return device->index() < guard->deviceCount() ? Status() : absent();
  });
  RETURN_IF_ERROR(found);
  return *device;
}

}  // namespace

std::shared_ptr<const ExecutionProvider> MakeTorchProvider(
    const std::function<void(KernelRegistry&)>& more) {
  return std::make_shared<TorchProvider>(c10::Device(c10::kCPU), more);
}

Result<std::shared_ptr<const ExecutionProvider>> MakeTorchDeviceProvider(const std::string& name) {
  ASSIGN_OR_RETURN(const c10::Device device, FindDevice(name));
  return std::shared_ptr<const ExecutionProvider>(std::make_shared<TorchProvider>(device, nullptr));
}

}  // namespace caesura::torch
