// SPDX-License-Identifier: Apache-2.0
// Nodes whose inputs are known while planning run there, once: shape chains and arithmetic on
// constants.
#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/plan/phases/plan_phases.h"

namespace caesura {
namespace {

// Folding may enlarge a plan by at most this, or by the size of what the node read.
constexpr size_t kFoldBytes = size_t{1} << 20;

// Serves a kernel that runs while planning: its dynamic outputs become tensors here.
class FoldHost : public KernelHost {
 public:
  FoldHost(const uint32_t* ids, const std::vector<InputInfo>& inputs, std::vector<Tensor>& outputs)
      : ids_(ids), inputs_(inputs), outputs_(outputs) {}
  RuntimeValue ArgumentValue(const uint32_t* argument) override {
    const InputInfo& info = inputs_[argument - ids_];
    return info.value == nullptr ? RuntimeValue() : RuntimeValue(*info.value);
  }
  Result<Tensor> AllocateArgument(const uint32_t* argument, DType dtype, Shape shape) override {
    ASSIGN_OR_RETURN(outputs_[argument - ids_ - inputs_.size()],
                     Tensor::Allocate(dtype, std::move(shape)));
    return outputs_[argument - ids_ - inputs_.size()];
  }
  void SetArgumentValue(const uint32_t* argument, RuntimeValue value) override {
    if (value.is_tensor()) outputs_[argument - ids_ - inputs_.size()] = value.tensor();
  }
  RandomKey random_key(uint32_t subsequence) const override { return {0, 0, subsequence}; }
  Result<Tensor> CopyOf(const Tensor& tensor) const override { return tensor.Clone(); }

 private:
  const uint32_t* ids_;
  const std::vector<InputInfo>& inputs_;
  std::vector<Tensor>& outputs_;
};

}  // namespace

Result<std::vector<Tensor>> ComputeNow(const std::vector<InputInfo>& inputs, KernelInfo& info) {
  const size_t outputs = info.outputs().size();
  std::vector<Tensor> results(outputs);
  std::vector<uint32_t> ids(inputs.size() + outputs);
  std::vector<void*> addresses(ids.size(), nullptr);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint32_t>(i);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].value != nullptr) addresses[i] = inputs[i].value->raw();
  }
  for (size_t i = 0; i < outputs; ++i) {
    const OutputInfo& decided = info.outputs()[i];
    if (!info.HasOutput(static_cast<int>(i)) || decided.kind != OutputInfo::Kind::kPlanned)
      continue;
    ASSIGN_OR_RETURN(results[i], Tensor::Allocate(decided.dtype, decided.shape));
    addresses[inputs.size() + i] = results[i].raw();
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Buffer> scratch, HostAllocator().Allocate(info.scratch_bytes()));
  FoldHost host(ids.data(), inputs, results);
  KernelContext context(addresses.data(), ids.data(), static_cast<uint32_t>(inputs.size()),
                        scratch->data(), 0, &host);
  // The kernel keeps a copy: if the result is no tensor, the node becomes a step after all.
  const ComputeFunction compute = info.TakeCompute();
  info.SetCompute(compute);
  if (!compute) return Internal("kernel has no compute function");
  RETURN_IF_ERROR(compute(context));
  return results;
}

bool IsFoldable(const std::vector<InputInfo>& inputs, const KernelInfo& info,
                const KernelDef& def) {
  if (!def.deterministic) return false;
  size_t read = 0, written = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const InputInfo& input = inputs[i];
    if (!input.present || KernelDef::Lists(def.unread_inputs, static_cast<int>(i))) continue;
    if (input.value == nullptr) return false;
    read += input.value->bytes();
  }
  for (const OutputInfo& output : info.outputs()) {
    written += static_cast<size_t>(output.shape.elements()) * DTypeSize(output.dtype);
  }
  return written <= std::max(kFoldBytes, read);
}

namespace {

void BecomeConstant(PlanDraft& plan, uint32_t id, const Tensor& tensor) {
  PlaceValue(plan, id, PlannedBuffer::Kind::kConstant, tensor.dtype(), tensor.shape(),
             static_cast<int>(plan.data.constants.size()));
  plan.data.constants.push_back(tensor);
  plan.kept.push_back(std::make_shared<Tensor>(tensor));
  plan.values[id].contents = plan.kept.back().get();
}

}  // namespace

Result<bool> TryFold(PlanDraft& plan, const NodeDraft& draft, KernelInfo& info,
                     const KernelDef& def) {
  if (!plan.data.options.fold_constants || !draft.bodies.empty() ||
      !IsFoldable(draft.infos, info, def))
    return false;
  KernelInfo on_host(*draft.node, draft.infos, plan.data.threads);
  if (!draft.provider->device().is_host()) {  // contents are on the host, and so are results
    auto host = std::find_if(draft.candidates.begin(), draft.candidates.end(),
                             [](const ExecutionProvider* p) { return p->device().is_host(); });
    if (host == draft.candidates.end() || !(*host)->kernels().Create(on_host, (*host)->name()).ok())
      return false;
  }
  ASSIGN_OR_RETURN(const std::vector<Tensor> results,
                   ComputeNow(draft.infos, draft.provider->device().is_host() ? info : on_host));
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    if (draft.outputs[i] != 0 && !results[i].defined()) return false;
  }
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    if (draft.outputs[i] != 0) BecomeConstant(plan, draft.outputs[i], results[i]);
  }
  return true;
}

}  // namespace caesura
