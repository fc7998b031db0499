// SPDX-License-Identifier: Apache-2.0
// LambUpdate, the rule of update_rules.h: moments with sums of squares for each chunk, a ratio for
// each parameter, then the parameters. Three launches for as many parameters as a table of
// arguments holds; sums have one order.
#include <algorithm>

#include "core/kernels/cuda/fused_rows/row_source.h"
#include "core/kernels/cuda/kernel_list.h"
#include "core/kernels/cuda/optimizer/update_source.h"
#include "core/kernels/cuda/tensor_table.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/update_spec.h"

namespace caesura {
namespace {

// A parameter, its gradient, m and v are the table's arrays.
constexpr char kLambMoments[] = R"(
extern "C" __global__ void __launch_bounds__(THREADS) lamb_moments(const R* rates,
    const i64* number, const Q* scale_at, const __grid_constant__ Table table,
    const __grid_constant__ Numbers numbers, unsigned* error, unsigned wrong_step, const unsigned* gate,
    double* sums) {
  __shared__ Rule rule;
  __shared__ Step step;
  if (threadIdx.x == 0) {
    step = ReadStep(rates, number, scale_at, numbers, error, gate);
    if (step.number < 1 && blockIdx.x == 0) atomicCAS(error, 0u, wrong_step);
    rule = RuleOf(step, numbers, nullptr);
  }
  __syncthreads();
  if (step.skip) return;
  const Rule own = rule;
  const C factor = (C)step.scale;
  Chunk chunk = {};
  for (int c = blockIdx.x; c < table.chunks; c += gridDim.x) {
    MoveTo(table, c, chunk);
    const S* p = (const S*)table.at[0][chunk.tensor] + chunk.begin;
    const S* g = (const S*)table.at[1][chunk.tensor] + chunk.begin;
    S* m = (S*)table.at[2][chunk.tensor] + chunk.begin;
    S* v = (S*)table.at[3][chunk.tensor] + chunk.begin;
    double of_p = 0, of_u = 0;
    for (int i = threadIdx.x; i < chunk.count; i += THREADS) {
      C parameter = Load(p + i), state[2] = {Load(m + i), Load(v + i)};
      own(parameter, (C)(Load(g + i) * factor), state);
      S stored[2];
      Store(stored, state[0]);
      Store(stored + 1, state[1]);
      m[i] = stored[0];
      v[i] = stored[1];
      const double u = (double)own.Direction(parameter, Load(stored), Load(stored + 1));
      of_p += (double)parameter * (double)parameter;
      of_u += u * u;
    }
    of_p = RowReduce(of_p, RowSum());
    of_u = RowReduce(of_u, RowSum());
    if (threadIdx.x == 0) {
      sums[2 * c] = of_p;
      sums[2 * c + 1] = of_u;
    }
  }
}
)";

// A block a parameter.
constexpr char kLambRatios[] = R"(
extern "C" __global__ void __launch_bounds__(THREADS) lamb_ratios(const R* rates,
    const i64* number, const Q* scale_at, const __grid_constant__ Table table,
    const __grid_constant__ Numbers numbers, const unsigned* error, const unsigned* gate,
    const double* sums, double* ratios) {
  if (ReadStep(rates, number, scale_at, numbers, error, gate).skip) return;
  const int t = blockIdx.x;
  const i64 chunks = (table.elements[t] + CHUNK - 1) / CHUNK;
  double of_p = 0, of_u = 0;
  for (i64 i = threadIdx.x; i < chunks; i += THREADS) {
    of_p += sums[2 * (table.first[t] + i)];
    of_u += sums[2 * (table.first[t] + i) + 1];
  }
  of_p = RowReduce(of_p, RowSum());
  of_u = RowReduce(of_u, RowSum());
  if (threadIdx.x == 0) ratios[t] = caesura::TrustRatio(of_p, of_u);
}
)";

constexpr char kLambParameters[] = R"(
extern "C" __global__ void __launch_bounds__(THREADS) lamb_parameters(const R* rates,
    const i64* number, const Q* scale_at, const __grid_constant__ Table table,
    const __grid_constant__ Numbers numbers, const unsigned* error, const unsigned* gate,
    const double* ratios) {
  __shared__ Rule rule;
  __shared__ Step step;
  if (threadIdx.x == 0) {
    step = ReadStep(rates, number, scale_at, numbers, error, gate);
    rule = RuleOf(step, numbers, nullptr);
  }
  __syncthreads();
  if (step.skip) return;
  const Rule own = rule;
  Chunk chunk = {};
  for (int c = blockIdx.x; c < table.chunks; c += gridDim.x) {
    MoveTo(table, c, chunk);
    S* p = (S*)table.at[0][chunk.tensor] + chunk.begin;
    const S* m = (const S*)table.at[2][chunk.tensor] + chunk.begin;
    const S* v = (const S*)table.at[3][chunk.tensor] + chunk.begin;
    const C rate = (C)(step.learning_rate * ratios[chunk.tensor]);
    for (int i = threadIdx.x; i < chunk.count; i += THREADS) {
      const C parameter = Load(p + i);
      Store(p + i, parameter - rate * own.Direction(parameter, Load(m + i), Load(v + i)));
    }
  }
}
)";

struct LambKernels {
  CudaTensorTable table;
  CudaKernel moments, ratios, parameters;
};

Status CreateLamb(KernelInfo& info, const CudaDevicePtr& device) {
  const RuleChoice choice = ChooseRule(info);
  ASSIGN_OR_RETURN(const UpdateSpec spec,
                   UpdateSpec::Make(info, choice.states, choice.coefficients));
  const std::string source = CudaRowPrelude() + CudaTensorTable::Source(2 + spec.states) +
                             CudaUpdateSource(spec, choice.rule);
  std::vector<LambKernels> kernels;
  int64_t most = 0;  // chunks of a table
  for (const CudaTensorTable& table : CudaTensorTable::Make(spec.elements, 2 + spec.states)) {
    const CudaGrid grid = table.Grid(*device);
    const auto make = [&](const char* text, const char* name, unsigned blocks) {
      return CudaKernel::Make(device, source + text, name, {blocks, CudaTensorTable::kThreads});
    };
    ASSIGN_OR_RETURN(CudaKernel moments, make(kLambMoments, "lamb_moments", grid.blocks));
    ASSIGN_OR_RETURN(CudaKernel ratios, make(kLambRatios, "lamb_ratios", table.tensors()));
    ASSIGN_OR_RETURN(CudaKernel parameters, make(kLambParameters, "lamb_parameters", grid.blocks));
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
