// SPDX-License-Identifier: Apache-2.0
// Steps that are resolved at run time: kernels whose shapes are known only then, copies between
// devices, and values kept in the cache.
#include <algorithm>

#include "core/base/status_macros.h"
#include "core/execute/partial_executor.h"
#include "core/kernels/kernel_registry.h"
#include "core/plan/exchange_start.h"

namespace caesura {

Status PartialExecutor::RunDynamic(ExecutionState& state, const PlanStep& step) {
  const ExecutionPlan& plan = *state.plan_;
  const uint32_t* ids = plan.arguments().data() + step.first_argument;
  const uint32_t* value_ids = plan.argument_values().data() + step.first_argument;
  std::vector<RuntimeValue> inputs(step.input_count);
  std::vector<InputInfo> infos(step.input_count);
  for (uint32_t i = 0; i < step.input_count; ++i) {
    if (ids[i] == 0) continue;
    inputs[i] = state.ValueOf(value_ids[i]);
    InputInfo& info = infos[i];
    info.present = true;
    info.is_tensor = inputs[i].is_tensor();
    info.runtime_value = &inputs[i];
    if (!info.is_tensor) continue;
    info.dtype = inputs[i].tensor().dtype();
    info.shape = inputs[i].tensor().shape();
    info.layout =
        plan.values()[value_ids[i]].layout;  // of the bytes at the address; `value` is dense
    if (inputs[i].tensor().device().is_host()) info.value = &inputs[i].tensor();
  }
  KernelInfo info(*step.node, std::move(infos), plan.threads());
  info.set_subgraph_runner([&step](const std::string& name) { return step.Body(name); });
  const Result<const KernelDef*> def = step.provider->kernels().Create(info, step.provider->name());
  // Values are with this provider: no other can be asked.
  if (def.status().code() == StatusCode::kDeclined) return Unsupported(def.status().message());
  if (!def.ok()) return def.status();
  if (!(*def)->contiguous_inputs.empty())
    return Unsupported("wants its inputs in one block, but is sized at run time");
  RETURN_IF_ERROR(PlaceDynamicOutputs(state, step, info, **def, inputs));
  const ComputeFunction compute = info.TakeCompute();
  if (!compute) return {};
  ASSIGN_OR_RETURN(std::shared_ptr<Buffer> scratch,
                   state.AllocatorOf(step.device).Allocate(info.scratch_bytes()));
  KernelContext context(state.addresses_.data(), ids, step.input_count, scratch->data(),
                        step.subsequence, &state);
  return compute(context);
}

Status PartialExecutor::PlaceDynamicOutputs(ExecutionState& state, const PlanStep& step,
                                            const KernelInfo& info, const KernelDef& def,
                                            const std::vector<RuntimeValue>& inputs) {
  const ExecutionPlan& plan = *state.plan_;
  const uint32_t first = step.first_argument + step.input_count;
  for (uint32_t i = 0; i < step.output_count; ++i) {
    const uint32_t id = plan.argument_values()[first + i];
    const OutputInfo& output = info.outputs()[i];
    if (id == 0 || output.kind == OutputInfo::Kind::kSizedInCompute) continue;
    if (output.kind == OutputInfo::Kind::kUnset) {
      return Internal("kernel did not decide on output " + std::to_string(i));
    }
    const Value& value = *plan.values()[id].value;
    if (std::any_of(value.uses().begin(), value.uses().end(),
                    [](const Value::Use& use) { return StartsExchange(*use.node); })) {
      const std::optional<Shape> typed = value.type().ConcreteShape();
      if (typed && *typed != output.shape) {
        return Internal("made " + output.shape.ToString() + ", and is exchanged as " +
                        typed->ToString());
      }
    }
    auto in_place = [&](const Alias& a) {
      return a.output == static_cast<int>(i) && a.kind == Alias::Kind::kInPlace &&
             a.input < static_cast<int>(inputs.size()) && inputs[a.input].is_tensor();
    };
    auto alias = std::find_if(info.aliases().begin(), info.aliases().end(), in_place);
    const Alias* found = alias != info.aliases().end() ? &*alias : nullptr;
    for (const Alias& a : def.aliases) {
      if (found == nullptr && in_place(a)) found = &a;
    }
    if (found != nullptr) {
      const PlannedBuffer& buffer =
          plan.buffers()[plan.arguments()[step.first_argument + found->input]];
      const bool ours = buffer.kind == PlannedBuffer::Kind::kParameter ||
                        buffer.kind == PlannedBuffer::Kind::kArena;
      if (!ours || buffer.last_step > state.pc_) {
        return InvalidModel(
            "updates in place what is no parameter, or what a later node still reads");
      }
      // The undo log goes by the phase (core/plan/parameter_writes.h).
      if (buffer.kind == PlannedBuffer::Kind::kParameter &&
          step.node->phase() != Phase::kOptimizer) {
        return InvalidModel(
            "updates a parameter at run time, but is no node of the optimizer, so that a failed "
            "run would not be undone");
      }
      state.SetDynamic(id, inputs[found->input]);
      continue;
    }
    auto allocated =
        state.AllocateArgument(plan.arguments().data() + first + i, output.dtype, output.shape);
    if (!allocated.ok()) return allocated.status();
  }
  return {};
}

Status PartialExecutor::RunCopy(ExecutionState& state, const PlanStep& step) {
  const ExecutionPlan& plan = *state.plan_;
  const uint32_t* ids = plan.arguments().data() + step.first_argument;
  if (step.compute) {
    KernelContext context(state.addresses_.data(), ids, 1, nullptr, step.subsequence, &state);
    return step.compute(context);
  }
  const uint32_t* value_ids = plan.argument_values().data() + step.first_argument;
  const RuntimeValue value = state.ValueOf(value_ids[0]);
  if (!value.is_tensor()) return {};  // an optional that was left out
  const int device = plan.buffers()[ids[1]].device;
  ASSIGN_OR_RETURN(Tensor copy, state.CopyTo(value.tensor(), device, state.AllocatorOf(device)));
  state.SetDynamic(value_ids[1], std::move(copy));
  return device == 0 ? step.provider->Synchronise() : Status();
}

Status PartialExecutor::RunCached(ExecutionState& state, const PlanStep& step) {
  const ExecutionPlan& plan = *state.plan_;
  const uint32_t* ids = plan.arguments().data() + step.first_argument;
  uint64_t version = 0;  // versions only grow, so the largest one changes with any of them
  for (int parameter : step.cache_parameters)
    version = std::max(version, state.options_.parameters->version(parameter));
  uint32_t output = 0;
  for (uint32_t i = 0; i < step.output_count; ++i)
    output = std::max(output, ids[step.input_count + i]);
  if (state.options_.cache != nullptr) {
    if (auto kept = state.options_.cache->Find(step.index, version)) {
      state.cached_[step.index] = std::move(kept);
      state.addresses_[output] = state.cached_[step.index]->data();
      return {};
    }
  }
  const PlannedBuffer& buffer = plan.buffers()[output];
  ASSIGN_OR_RETURN(std::shared_ptr<Buffer> fresh,
                   state.AllocatorOf(buffer.device).Allocate(buffer.bytes));
  state.addresses_[output] = fresh->data();
  KernelContext context(state.addresses_.data(), ids, step.input_count,
                        state.arena_bases_[step.device] + step.scratch_offset, step.subsequence,
                        &state);
  RETURN_IF_ERROR(step.compute(context));
  if (state.options_.cache != nullptr) state.options_.cache->Put(step.index, version, fresh);
  state.cached_[step.index] = std::move(fresh);
  return {};
}

}  // namespace caesura
