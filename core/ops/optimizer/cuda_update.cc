// SPDX-License-Identifier: Apache-2.0
// Optimizer updates whose rule is in update_rules.h: one launch for as many parameters as a table
// of arguments holds. Learning rate, step and scale are read on the device.
#include <algorithm>

#include "core/cuda/cuda_source.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/cuda_kernels.h"
#include "core/ops/optimizer/cuda_update_source.h"
#include "core/kernels/cuda/tensor_table.h"
#include "core/kernels/kernel.h"
#include "core/ops/optimizer/update_spec.h"

namespace caesura {
namespace {

struct TableKernel {
  CudaTensorTable table;
  CudaKernel kernel;
};

Status CreateUpdate(KernelInfo& info, const CudaDevicePtr& device) {
  const RuleChoice choice = ChooseRule(info);
  ASSIGN_OR_RETURN(const UpdateSpec spec,
                   UpdateSpec::Make(info, choice.states, choice.coefficients, choice.scalars));
  const std::string macros = CudaUpdateMacros(spec, choice.rule);
  std::vector<TableKernel> updates, scalars;
  const int arrays = 2 + spec.states - spec.scalars;  // of a parameter; then come its scalars
  for (const CudaTensorTable& table : CudaTensorTable::Make(spec.elements, 2 + spec.states)) {
    ASSIGN_OR_RETURN(CudaKernel kernel,
                     CudaKernel::Make(device,
                                      CudaTensorTable::Macros(2 + spec.states) + macros +
                                          CudaInclude("core/ops/optimizer/update.cuh"),
                                      "update", table.Grid(*device)));
    updates.push_back({table, std::move(kernel)});
  }
  const std::vector<int64_t> ones(spec.scalars > 0 ? spec.elements.size() : 0, 1);
  for (const CudaTensorTable& table : CudaTensorTable::Make(ones, spec.scalars)) {
    ASSIGN_OR_RETURN(CudaKernel kernel,
                     CudaKernel::Make(device,
                                      CudaTensorTable::Macros(spec.scalars) + macros +
                                          CudaInclude("core/ops/optimizer/set_scalars.cuh"),
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
