// SPDX-License-Identifier: Apache-2.0
// LambUpdate, the rule of update_rules.h: moments with sums of squares for each chunk, a ratio for
// each parameter, then the parameters. Three launches for as many parameters as a table of
// arguments holds; sums have one order.
#include <algorithm>

#include "core/cuda/cuda_source.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/optimizer/cuda_update_source.h"
#include "core/kernels/cuda/tensor_table.h"
#include "core/kernels/kernel.h"
#include "core/ops/optimizer/update_spec.h"

namespace caesura {
namespace {

struct LambKernels {
  CudaTensorTable table;
  CudaKernel moments, ratios, parameters;
};

Status CreateLamb(KernelInfo& info, const CudaDevicePtr& device) {
  const RuleChoice choice = ChooseRule(info);
  ASSIGN_OR_RETURN(const UpdateSpec spec,
                   UpdateSpec::Make(info, choice.states, choice.coefficients));
  const std::string source = CudaTensorTable::Macros(2 + spec.states) +
                             CudaUpdateMacros(spec, choice.rule) +
                             CudaInclude("core/ops/optimizer/lamb.cuh");
  std::vector<LambKernels> kernels;
  int64_t most = 0;  // chunks of a table
  for (const CudaTensorTable& table : CudaTensorTable::Make(spec.elements, 2 + spec.states)) {
    const CudaGrid grid = table.Grid(*device);
    const auto make = [&](const char* name, unsigned blocks) {
      return CudaKernel::Make(device, source, name, {blocks, CudaTensorTable::kThreads});
    };
    ASSIGN_OR_RETURN(CudaKernel moments, make("lamb_moments", grid.blocks));
    ASSIGN_OR_RETURN(CudaKernel ratios, make("lamb_ratios", table.tensors()));
    ASSIGN_OR_RETURN(CudaKernel parameters, make("lamb_parameters", grid.blocks));
    most = std::max(most, table.chunks());
    kernels.push_back({table, std::move(moments), std::move(ratios), std::move(parameters)});
  }
  // The tables take turns in it.
  const size_t scratch = info.BookScratch(static_cast<size_t>(3 * most) * sizeof(double));
  const unsigned wrong_step = device->AddError(spec.wrong_step + "less");
  info.SetCompute([=, numbers = CudaUpdateNumbers(spec, choice.flag),
                   device = device.get()](KernelContext& context) -> Status {
    const auto address_of = [&](int tensor, int k) -> const void* {
      if (k == 1) return context.Input<void>(spec.Gradient(tensor));
      return context.Output<void>(spec.Output(k == 0 ? -1 : k - 2, tensor));
    };
    const void *rates = context.Input<void>(0), *number = context.Input<void>(1),
               *scale = context.Input<void>(2);
    CudaUpdateNumbers of_step = numbers;
    unsigned* error = device->error_cell();
    const unsigned* gate = device->gate();
    unsigned wrong = wrong_step;
    double *sums = context.Scratch<double>(scratch), *ratios = sums + 2 * most;
    for (const LambKernels& of : kernels) {
      CudaTensorTable::Words table = of.table.Argument(address_of);
      void* moments[] = {&rates, &number, &scale, table.data(), &of_step,
                         &error, &wrong,  &gate,  &sums};
      RETURN_IF_ERROR(of.moments.LaunchWith(moments));
      void* reduced[] = {&rates, &number, &scale, table.data(), &of_step,
                         &error, &gate,   &sums,  &ratios};
      RETURN_IF_ERROR(of.ratios.LaunchWith(reduced));
      void* parameters[] = {&rates,   &number, &scale, table.data(),
                            &of_step, &error,  &gate,  &ratios};
      RETURN_IF_ERROR(of.parameters.LaunchWith(parameters));
    }
    return {};
  });
  return {};
}

}  // namespace

void RegisterCudaLamb(KernelRegistry& registry, const CudaDevicePtr& device) {
  registry.Add({.op_type = "LambUpdate",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .typed_input = UpdateSpec::kFirst,
                .create = [device](KernelInfo& info) { return CreateLamb(info, device); }});
}

}  // namespace caesura
