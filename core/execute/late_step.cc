// SPDX-License-Identifier: Apache-2.0
// Steps that are settled in the run: kernels whose shapes show only now, and values kept in the
// cache.
#include <algorithm>

#include "core/base/status_macros.h"
#include "core/execute/execution_state.h"

namespace caesura {

Status ExecutionState::RunLate(int index) {
  const Step& step = plan_->steps()[index];
  const uint32_t* ids = plan_->arguments().data() + step.first_argument;
  const uint32_t* value_ids = plan_->argument_values().data() + step.first_argument;
  std::vector<RuntimeValue> inputs(step.input_count);
  std::vector<InputInfo> infos(step.input_count);
  for (uint32_t i = 0; i < step.input_count; ++i) {
    if (ids[i] == 0) continue;
    inputs[i] = ValueOf(value_ids[i]);
    InputInfo& info = infos[i];
    info.present = true;
    info.is_tensor = inputs[i].is_tensor();
    info.runtime_value = &inputs[i];
    if (!info.is_tensor) continue;
    info.dtype = inputs[i].tensor().dtype();
    info.shape = inputs[i].tensor().shape();
    info.layout =
        plan_->values()[value_ids[i]].layout;  // of the bytes at the address; `value` is dense
    if (inputs[i].tensor().device().is_host()) info.value = &inputs[i].tensor();
  }
  KernelInfo info(*step.node, std::move(infos), plan_->threads());
  info.set_subgraph_runner([&step](const std::string& name) { return step.Body(name); });
  ASSIGN_OR_RETURN(const KernelDef* def,
                   step.provider->kernels().Create(info, step.provider->name()));
  if (!def->contiguous_inputs.empty())
    return Unsupported("wants its inputs in one block, but is sized in the run");
  RETURN_IF_ERROR(PlaceLateOutputs(step, info, *def, inputs));
  const ComputeFunction compute = info.TakeCompute();
  if (!compute) return {};
  ASSIGN_OR_RETURN(std::shared_ptr<Buffer> scratch,
                   AllocatorOf(step.device).Allocate(info.scratch_bytes()));
  KernelContext context(addresses_.data(), ids, step.input_count, scratch->data(), step.stream,
                        this);
  return compute(context);
}

Status ExecutionState::PlaceLateOutputs(const Step& step, const KernelInfo& info,
                                        const KernelDef& def,
                                        const std::vector<RuntimeValue>& inputs) {
  const uint32_t first = step.first_argument + step.input_count;
  for (uint32_t i = 0; i < step.output_count; ++i) {
    const uint32_t id = plan_->argument_values()[first + i];
    const OutputInfo& output = info.outputs()[i];
    if (id == 0 || output.kind == OutputInfo::Kind::kSizedInCompute) continue;
    if (output.kind == OutputInfo::Kind::kUnset) {
      return Internal("kernel did not decide on output " + std::to_string(i));
    }
    auto in_place = [&](const Alias& a) {
      return a.output == static_cast<int>(i) && a.kind == Alias::Kind::kInPlace &&
             a.input < static_cast<int>(inputs.size()) && inputs[a.input].is_tensor();
    };
    auto alias = std::find_if(info.in_place().begin(), info.in_place().end(), in_place);
    const Alias* found = alias != info.in_place().end() ? &*alias : nullptr;
    for (const Alias& a : def.aliases) {
      if (found == nullptr && in_place(a)) found = &a;
    }
    if (found != nullptr) {
      const PlannedBuffer& buffer =
          plan_->buffers()[plan_->arguments()[step.first_argument + found->input]];
      const bool ours = buffer.kind == PlannedBuffer::Kind::kParameter ||
                        buffer.kind == PlannedBuffer::Kind::kArena;
      if (!ours || buffer.last_step > pc_) {
        return InvalidModel(
            "updates in place what is no parameter, or what a later node still reads");
      }
      SetDynamic(id, inputs[found->input]);
      continue;
    }
    auto allocated =
        AllocateArgument(plan_->arguments().data() + first + i, output.dtype, output.shape);
    if (!allocated.ok()) return allocated.status();
  }
  return {};
}

Status ExecutionState::RunCopy(int index) {
  const Step& step = plan_->steps()[index];
  const uint32_t* ids = plan_->arguments().data() + step.first_argument;
  if (step.compute) {
    KernelContext context(addresses_.data(), ids, 1, nullptr, step.stream, this);
    return step.compute(context);
  }
  const uint32_t* value_ids = plan_->argument_values().data() + step.first_argument;
  const RuntimeValue value = ValueOf(value_ids[0]);
  if (!value.is_tensor()) return {};  // an optional that was left out
  const int device = plan_->buffers()[ids[1]].device;
  ASSIGN_OR_RETURN(Tensor copy, CopyTo(value.tensor(), device, AllocatorOf(device)));
  SetDynamic(value_ids[1], std::move(copy));
  return device == 0 ? step.provider->Synchronise() : Status();
}

Status ExecutionState::RunCached(int index) {
  const Step& step = plan_->steps()[index];
  const uint32_t* ids = plan_->arguments().data() + step.first_argument;
  uint64_t version = 0;  // versions only grow, so the largest one changes with any of them
  for (int parameter : step.cache_parameters)
    version = std::max(version, options_.parameters->version(parameter));
  uint32_t output = 0;
  for (uint32_t i = 0; i < step.output_count; ++i)
    output = std::max(output, ids[step.input_count + i]);
  if (options_.cache != nullptr) {
    if (auto kept = options_.cache->Find(step.index, version)) {
      cached_[step.index] = std::move(kept);
      addresses_[output] = cached_[step.index]->data();
      return {};
    }
  }
  const PlannedBuffer& buffer = plan_->buffers()[output];
  ASSIGN_OR_RETURN(std::shared_ptr<Buffer> fresh,
                   AllocatorOf(buffer.device).Allocate(buffer.bytes));
  addresses_[output] = fresh->data();
  KernelContext context(addresses_.data(), ids, step.input_count,
                        arena_bases_[step.device] + step.scratch_offset, step.stream, this);
  RETURN_IF_ERROR(step.compute(context));
  if (options_.cache != nullptr) options_.cache->Put(step.index, version, fresh);
  cached_[step.index] = std::move(fresh);
  return {};
}

}  // namespace caesura
