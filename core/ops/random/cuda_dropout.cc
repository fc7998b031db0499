// SPDX-License-Identifier: Apache-2.0
// Dropout; its gradient is elementwise (element_source.h). The random words are those of the CPU's
// kernel (Philox, core/ops/random/philox.h), so that both drop the same elements. Seed and
// step are read on the device, where a run puts them.
#include "core/cuda/cuda_source.h"
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/random/random_seed.h"

namespace caesura {
namespace {

Status CreateDropout(KernelInfo& info, const CudaDevicePtr& device) {
  const DType dtype = info.InputDType(0);
  DType ratio = DType::kFloat32;
  if (info.HasInput(1)) {
    if (info.InputShape(1).elements() != 1) return info.Invalid("ratio: expected a scalar");
    ratio = info.InputDType(1);
    if (!kFloatTypes.Contains(ratio)) return info.Refuse("has a ratio of an unexpected type");
  }
  if (info.HasInput(2) &&
      (info.InputDType(2) != DType::kBool || info.InputShape(2).elements() != 1))
    return info.Invalid("training_mode: expected a bool");
  const int64_t n = info.InputShape(0).elements();
  const bool has_ratio = info.HasInput(1), has_mode = info.HasInput(2),
             has_mask = info.HasOutput(1);
  info.SetOutput(0, dtype, info.InputShape(0));
  info.SetOutput(1, DType::kBool, info.InputShape(0));
  const std::string source = CudaMacros({{"S_TYPE", CudaStorageType(dtype)},
                                         {"C_TYPE", CudaComputeType(dtype)},
                                         {"R_TYPE", CudaStorageType(ratio)}}) +
                             CudaInclude("core/ops/random/dropout.cuh");
  ASSIGN_OR_RETURN(const CudaKernel kernel,
                   CudaKernel::Make(device, source, "dropout", GridOver(*device, (n + 3) / 4)));
  const unsigned number =
      device->AddError(info.node().Label() + " ratio: expected a value in [0, 1]");
  info.SetCompute(
      [=, seed = SeedOverride(info), error = device->error_cell()](KernelContext& context) {
        return kernel.Launch(context.Input<void>(0), has_ratio ? context.Input<void>(1) : nullptr,
                             has_mode ? context.Input<void>(2) : nullptr, context.Output<void>(0),
                             has_mask ? context.Output<void>(1) : nullptr, n,
                             context.device_random_key(), seed.given, seed.seed,
                             context.random_key().subsequence, error, number);
      });
  return {};
}

}  // namespace

void RegisterCudaDropout(KernelRegistry& registry, const CudaDevicePtr& device) {
  registry.Add({.op_type = "Dropout",
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .deterministic = false,
                .create = [device](KernelInfo& info) { return CreateDropout(info, device); }});
}

}  // namespace caesura
