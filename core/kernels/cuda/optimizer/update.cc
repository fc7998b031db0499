// SPDX-License-Identifier: Apache-2.0
// Optimizer updates whose rule is in update_rules.h: one launch for as many parameters as a table
// of arguments holds. Learning rate, step and scale are read on the device.
#include <algorithm>

#include "core/kernels/cuda/kernel_list.h"
#include "core/kernels/cuda/optimizer/update_source.h"
#include "core/kernels/cuda/tensor_table.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/update_spec.h"

namespace caesura {
namespace {

// The rule is made once a step, or for each parameter if it has scalars, which the table has after
// the states.
constexpr char kUpdate[] = R"(
extern "C" __global__ void __launch_bounds__(THREADS) update(const R* rates, const i64* number,
    const Q* scale_at, const __grid_constant__ Table table, const __grid_constant__ Numbers numbers,
    unsigned* error, unsigned wrong_step, const unsigned* gate) {
  __shared__ Rule rule;
  __shared__ Step step;
  if (threadIdx.x == 0) {
    step = ReadStep(rates, number, scale_at, numbers, error, gate);
    if (step.number < 1 && blockIdx.x == 0) atomicCAS(error, 0u, wrong_step);
    if (kScalars == 0) rule = RuleOf(step, numbers, nullptr);
  }
  __syncthreads();
  if (step.skip) return;
  Rule own;
  if (kScalars == 0) own = rule;
  int ruled = -1;  // the parameter whose rule it is, where each has its own
  const C factor = (C)step.scale;
  // A parameter, its gradient, its states.
  constexpr int kPack = 16 / sizeof(S), kArrays = 2 + Rule::kStates;
  Chunk chunk = {};
  for (int c = blockIdx.x; c < table.chunks; c += gridDim.x) {
    MoveTo(table, c, chunk);
    if (kScalars > 0 && chunk.tensor != ruled) {
      ruled = chunk.tensor;
      __syncthreads();  // the rule before may still be read
      if (threadIdx.x == 0) {
        V scalars[2];
        for (int k = 0; k < kScalars; ++k) scalars[k] = *(const V*)table.at[kArrays + k][ruled];
        rule = RuleOf(step, numbers, scalars);
      }
      __syncthreads();
      own = rule;
    }
    S* at[kArrays];
    bool whole = chunk.count == CHUNK;
#pragma unroll
    for (int k = 0; k < kArrays; ++k) {
      at[k] = (S*)table.at[k][chunk.tensor] + chunk.begin;
      whole &= OnWord(at[k]);
    }
    for (int i = threadIdx.x * kPack; i < chunk.count; i += THREADS * kPack) {
      const int left = chunk.count - i;
      Pack<S, kPack> packs[kArrays];
      if (whole) {
#pragma unroll
        for (int k = 0; k < kArrays; ++k) packs[k].LoadWords(at[k] + i);
      } else {
#pragma unroll
        for (int k = 0; k < kArrays; ++k) packs[k].LoadSome(at[k] + i, left);
      }
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        C parameter = Load(packs[0].v + e), state[3];
#pragma unroll
        for (int k = 0; k < Rule::kStates; ++k) state[k] = Load(packs[2 + k].v + e);
        own(parameter, (C)(Load(packs[1].v + e) * factor), state);
        Store(packs[0].v + e, parameter);
#pragma unroll
        for (int k = 0; k < Rule::kStates; ++k) Store(packs[2 + k].v + e, state[k]);
      }
      if (whole) {
#pragma unroll
        for (int k = 0; k < kArrays; ++k)
          if (k != 1) packs[k].StoreWords(at[k] + i);
      } else {
#pragma unroll
        for (int k = 0; k < kArrays; ++k)
          if (k != 1) packs[k].StoreSome(at[k] + i, left);
      }
    }
  }
}
)";

// After the update: blocks of it read the scalars at any time.
constexpr char kSetScalars[] = R"(
extern "C" __global__ void set_scalars(const R* rates, const i64* number, const Q* scale_at,
    const __grid_constant__ Table table, const __grid_constant__ Numbers numbers, unsigned* error,
    const unsigned* gate) {
  const Step step = ReadStep(rates, number, scale_at, numbers, error, gate);
  if (step.skip) return;
  for (int t = threadIdx.x; t < table.tensors; t += blockDim.x) {
    V scalars[2];
    for (int k = 0; k < kScalars; ++k) scalars[k] = *(const V*)table.at[k][t];
    RuleOf(step, numbers, scalars);
    for (int k = 0; k < kScalars; ++k) *(V*)table.at[k][t] = scalars[k];
  }
}
)";

struct TableKernel {
  CudaTensorTable table;
  CudaKernel kernel;
};

Status CreateUpdate(KernelInfo& info, const CudaDevicePtr& device) {
  const RuleChoice choice = ChooseRule(info);
  ASSIGN_OR_RETURN(const UpdateSpec spec,
                   UpdateSpec::Make(info, choice.states, choice.coefficients, choice.scalars));
  const std::string source = CudaUpdateSource(spec, choice.rule);
  std::vector<TableKernel> updates, scalars;
  const int arrays = 2 + spec.states - spec.scalars;  // of a parameter; then come its scalars
  for (const CudaTensorTable& table : CudaTensorTable::Make(spec.elements, 2 + spec.states)) {
    ASSIGN_OR_RETURN(
        CudaKernel kernel,
        CudaKernel::Make(device, CudaTensorTable::Source(2 + spec.states) + source + kUpdate,
                         "update", table.Grid(*device)));
    updates.push_back({table, std::move(kernel)});
  }
  const std::vector<int64_t> ones(spec.scalars > 0 ? spec.elements.size() : 0, 1);
  for (const CudaTensorTable& table : CudaTensorTable::Make(ones, spec.scalars)) {
    ASSIGN_OR_RETURN(
        CudaKernel kernel,
        CudaKernel::Make(device, CudaTensorTable::Source(spec.scalars) + source + kSetScalars,
                         "set_scalars", {1, CudaTensorTable::kThreads}));
    scalars.push_back({table, std::move(kernel)});
  }
  const unsigned wrong_step = device->AddError(spec.wrong_step + "less");
  info.SetCompute([=, numbers = CudaUpdateNumbers(spec, choice.flag),
                   device = device.get()](KernelContext& context) -> Status {
    const auto address_of = [&](int tensor, int k) -> const void* {
      if (k == 1) return context.Input<void>(spec.Gradient(tensor));
      const int state = k == 0 ? -1 : k < arrays ? spec.scalars + k - 2 : k - arrays;
      return context.Output<void>(spec.Output(state, tensor));
    };
    const void *rates = context.Input<void>(0), *number = context.Input<void>(1),
               *scale = context.Input<void>(2);
    CudaUpdateNumbers of_step = numbers;
    unsigned* error = device->error_cell();
    const unsigned* gate = device->gate();
    unsigned wrong = wrong_step;
    for (const TableKernel& update : updates) {
      CudaTensorTable::Words table = update.table.Argument(address_of);
      void* arguments[] = {&rates, &number, &scale, table.data(), &of_step, &error, &wrong, &gate};
      RETURN_IF_ERROR(update.kernel.LaunchWith(arguments));
    }
    for (const TableKernel& set : scalars) {
      CudaTensorTable::Words table = set.table.Argument([&](int tensor, int k) -> const void* {
        return context.Output<void>(spec.Output(k, tensor));
      });
      void* arguments[] = {&rates, &number, &scale, table.data(), &of_step, &error, &gate};
      RETURN_IF_ERROR(set.kernel.LaunchWith(arguments));
    }
    return {};
  });
  return {};
}

}  // namespace

bool LooksAtGate(const KernelDef& kernel) {
  const auto is_kernel = [&](const char* op) { return kernel.op_type == op; };
  return kernel.domain == kCaesuraDomain &&
         (is_kernel("LambUpdate") ||
          std::any_of(std::begin(kRuleOps), std::end(kRuleOps), is_kernel));
}

void RegisterCudaUpdates(KernelRegistry& registry, const CudaDevicePtr& device) {
  for (const char* op : kRuleOps) {
    registry.Add({.op_type = op,
                  .domain = kCaesuraDomain,
                  .types = kFloatTypes,
                  .typed_input = UpdateSpec::kFirst,
                  .create = [device](KernelInfo& info) { return CreateUpdate(info, device); }});
  }
}

}  // namespace caesura
