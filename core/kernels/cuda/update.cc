// SPDX-License-Identifier: Apache-2.0
// Optimizer updates whose rule is in update_rules.h: one launch for as many parameters as a table
// of arguments holds. Learning rate, step and scale are read on the device.
#include <algorithm>

#include "core/kernels/cuda/element_source.h"
#include "core/kernels/cuda/kernel_list.h"
#include "core/kernels/cuda/tensor_table.h"
#include "core/kernels/cuda/update_rules_text.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/update_spec.h"

namespace caesura {
namespace {

constexpr const char* kRuleNames[] = {"PlainSgdRule",
                                      "SgdRule",
                                      "AdamRule",
                                      "AmsgradRule",
                                      "LionRule",
                                      "RmspropRule",
                                      "CenteredRmspropRule",
                                      "MomentumRmspropRule",
                                      "CenteredMomentumRmspropRule"};

// As `struct Numbers` of the source.
struct Numbers {
  double written[6];
  int64_t fed[6];
  int64_t rate, flag, maximize, skip_nonfinite;
};

constexpr char kUpdate[] = R"(
struct Numbers { double written[6]; i64 fed[6]; i64 rate, flag, maximize, skip_nonfinite; };
struct Step { double learning_rate; i64 number; double coefficients[6]; };

extern "C" __global__ void __launch_bounds__(THREADS) update(const R* rates, const i64* number,
    const Q* scale_at, const __grid_constant__ Table table, const __grid_constant__ Numbers numbers,
    unsigned* error, unsigned wrong_step) {
  __shared__ Rule rule;
  __shared__ double scale;
  __shared__ int skip;
  if (threadIdx.x == 0) {
    Step step;
    step.learning_rate = (double)Load(rates + numbers.rate);
    step.number = *number;
    for (int k = 0; k < 6; ++k)
      step.coefficients[k] =
          numbers.fed[k] < 0 ? numbers.written[k] : (double)Load(rates + numbers.fed[k]);
    const double given = scale_at ? (double)Load(scale_at) : 1.0;
    const bool wrong = step.number < 1;
    if (wrong && blockIdx.x == 0) atomicCAS(error, 0u, wrong_step);
    scale = numbers.maximize ? -given : given;
    skip = wrong || (numbers.skip_nonfinite && !caesura::IsFinite(given));
    rule = Rule::Of(step, numbers.flag != 0);
  }
  __syncthreads();
  if (skip) return;
  const Rule own = rule;
  const C factor = (C)scale;
  // A parameter, its gradient, its states.
  constexpr int kPack = 16 / sizeof(S), kArrays = 2 + Rule::kStates;
  Chunk chunk = {};
  for (int c = blockIdx.x; c < table.chunks; c += gridDim.x) {
    MoveTo(table, c, chunk);
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

std::string Source(const UpdateSpec& spec, UpdateRule rule) {
  const DType scale = spec.scale_dtype == DType::kUndefined ? DType::kFloat64 : spec.scale_dtype;
  return CudaTensorTable::Source(2 + spec.states) + kUpdateRulesText + "\ntypedef " +
         CudaStorageType(spec.dtype) + " S;\ntypedef " + CudaComputeType(spec.dtype) +
         " C;\ntypedef " + CudaStorageType(spec.rate_dtype) + " R;\ntypedef " +
         CudaStorageType(scale) + " Q;\ntypedef caesura::" + kRuleNames[static_cast<int>(rule)] +
         "<C> Rule;\n" + kUpdate;
}

Numbers NumbersOf(const UpdateSpec& spec, bool flag) {
  Numbers out = {};
  std::copy(spec.written.begin(), spec.written.end(), out.written);
  std::copy(spec.fed.begin(), spec.fed.end(), out.fed);
  out.rate = spec.rate;
  out.flag = flag;
  out.maximize = spec.maximize;
  out.skip_nonfinite = spec.skip_nonfinite;
  return out;
}

Status CreateUpdate(KernelInfo& info, const CudaDevicePtr& device) {
  const RuleChoice choice = ChooseRule(info);
  ASSIGN_OR_RETURN(const UpdateSpec spec,
                   UpdateSpec::Make(info, choice.states, choice.coefficients));
  const std::vector<CudaTensorTable> tables = CudaTensorTable::Make(spec.elements, 2 + spec.states);
  std::vector<CudaKernel> kernels;
  for (const CudaTensorTable& table : tables) {
    ASSIGN_OR_RETURN(CudaKernel kernel, CudaKernel::Make(device, Source(spec, choice.rule),
                                                         "update", table.Grid(*device)));
    kernels.push_back(std::move(kernel));
  }
  const unsigned wrong_step = device->AddError(spec.wrong_step + "less");
  info.SetCompute([=, numbers = NumbersOf(spec, choice.flag),
                   error = device->error_cell()](KernelContext& context) -> Status {
    const auto address_of = [&](int tensor, int k) -> const void* {
      if (k == 1) return context.Input<void>(spec.Gradient(tensor));
      return context.Output<void>(spec.Output(k == 0 ? -1 : k - 2, tensor));
    };
    for (size_t t = 0; t < tables.size(); ++t) {
      const void *rates = context.Input<void>(0), *number = context.Input<void>(1),
                 *scale = context.Input<void>(2);
      CudaTensorTable::Words table = tables[t].Argument(address_of);
      Numbers of_step = numbers;
      unsigned* cell = error;
      unsigned wrong = wrong_step;
      void* arguments[] = {&rates, &number, &scale, table.data(), &of_step, &cell, &wrong};
      RETURN_IF_ERROR(kernels[t].LaunchWith(arguments));
    }
    return {};
  });
  return {};
}

}  // namespace

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
