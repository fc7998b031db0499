// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/torch_provider.h"

#include <ATen/Functions.h>
#include <c10/core/CPUAllocator.h>
#include <torch/headeronly/version.h>

#include <algorithm>

#include "core/base/status_macros.h"
#include "torch_bridge/aten_call.h"
#include "torch_bridge/aten_op.h"
#include "torch_bridge/torch_kernel.h"
#include "torch_bridge/torch_ops.h"

namespace caesura::torch {
namespace {

class TorchAllocator : public Allocator {
 public:
  Result<std::shared_ptr<Buffer>> Allocate(size_t size) override {
    std::shared_ptr<Buffer> buffer;
    RETURN_IF_ERROR(Guarded("PyTorch's allocator:", [&] {
      c10::DataPtr data = c10::GetCPUAllocator()->allocate(std::max<size_t>(size, 1));
      void* bytes = data.get();
      const c10::DeleterFnPtr deleter = data.get_deleter();
      buffer = std::make_shared<Buffer>(bytes, size, Device{}, [deleter, context = data.get_context()](void*) {
        deleter(context);
      });
      static_cast<void>(data.release_context());
      return Status();
    }));
    return buffer;
  }
  Device device() const override { return {}; }
};

// The results of a call whose values nobody needs: without bytes, or, for operators that have no kernel for that, on
// zeros.
Tensors TrialResults(const TorchRun& run, const TensorSpecs& specs) {
  Tensors results;
  const auto trial = [&](const Tensors& inputs) { return results = run(inputs), Status(); };
  if (Guarded("", [&] { return trial(MetaInputs(specs)); }).ok()) return results;
  Tensors zeros(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].present) zeros[i] = at::zeros({}, specs[i].type).expand(specs[i].shape.dims());
  }
  return run(zeros);
}

Status CreateTorchOp(const TorchOp& op, KernelInfo& info) {
  const std::string label = info.node().Label();
  DispatchScope scope(/*with_gradients=*/false);
  TensorSpecs specs;
  TorchRun run;
  // What PyTorch will not do, or does not understand, the next kernel is asked for; it has the better words for errors.
  const Status planned = Guarded(label, [&]() -> Status {
    ASSIGN_OR_RETURN(specs, InputSpecs(info));
    run = op.make(info);
    if (!run) return info.Refuse("PyTorch has no equivalent of these attributes and shapes");
    return PlanResults(info, TrialResults(run, specs));
  });
  if (!planned.ok()) return Unsupported(planned.message());
  info.SetCompute([=, outputs = PlannedOutputs(info)](KernelContext& context) {
    DispatchScope scope(/*with_gradients=*/false);
    return Guarded(label, [&] {
      return CopyResults(label, context, outputs, run(BorrowInputs(context, specs, 0, specs.size())));
    });
  });
  return {};
}

class TorchProvider : public ExecutionProvider {
 public:
  explicit TorchProvider(const std::function<void(KernelRegistry&)>& more) {
    for (auto* family : {ElementwiseTorchOps, MovementTorchOps, NnTorchOps}) {
      for (TorchOp& op : family()) {
        KernelDef def{.op_type = op.op_type, .since = op.since, .types = op.types, .typed_input = op.typed_input,
                      .host_inputs = op.host_inputs};
        def.create = [op = std::move(op)](KernelInfo& info) { return CreateTorchOp(op, info); };
        kernels_.Add(std::move(def));
      }
    }
    RegisterAtenKernels(kernels_);
    if (more) more(kernels_);
  }
  const std::string& name() const override { return name_; }
  Device device() const override { return {}; }
  const KernelRegistry& kernels() const override { return kernels_; }
  Allocator& allocator() const override { return *allocator_; }
  std::string rounding() const override { return "PyTorch " TORCH_VERSION; }

 private:
  std::string name_ = kTorchProviderName;
  KernelRegistry kernels_;
  std::shared_ptr<Allocator> allocator_ = std::make_shared<TorchAllocator>();
};

}  // namespace

std::shared_ptr<const ExecutionProvider> MakeTorchProvider(const std::function<void(KernelRegistry&)>& more) {
  return std::make_shared<TorchProvider>(more);
}

}  // namespace caesura::torch
