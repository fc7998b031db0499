// SPDX-License-Identifier: Apache-2.0
// CastAll (ai.caesura): one launch for as many tensors as a table of arguments holds.
#include "core/cuda/cuda_source.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/cuda/tensor_table.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/elementwise/cast_all.h"

namespace caesura {
namespace {

Status CreateCastAll(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const CastAllSpec spec, CastAllSpec::Make(info));
  const std::string source = CudaTensorTable::Macros(2) +
                             CudaMacros({{"FROM_TYPE", CudaStorageType(spec.from)},
                                         {"TO_TYPE", CudaStorageType(spec.to)},
                                         {"AS_TYPE", CudaComputeType(spec.to)}}) +
                             CudaInclude("core/ops/elementwise/cast_all.cuh");
  struct Part {
    CudaTensorTable table;
    CudaKernel kernel;
  };
  std::vector<Part> parts;
  for (CudaTensorTable& table : CudaTensorTable::Make(spec.elements, 2)) {
    ASSIGN_OR_RETURN(CudaKernel kernel,
                     CudaKernel::Make(device, source, "cast_all", table.Grid(*device)));
    parts.push_back({std::move(table), std::move(kernel)});
  }
  info.SetCompute([parts = std::move(parts)](KernelContext& context) -> Status {
    for (const Part& part : parts) {
      CudaTensorTable::Words table = part.table.Argument([&](int i, int k) -> const void* {
        return k == 0 ? context.Input<void>(i) : context.Output<void>(i);
      });
      void* arguments[] = {table.data()};
      RETURN_IF_ERROR(part.kernel.LaunchWith(arguments));
    }
    return {};
  });
  return {};
}

}  // namespace

void RegisterCudaCastAll(KernelRegistry& registry, const CudaDevicePtr& device) {
  registry.Add({.op_type = "CastAll",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .create = [device](KernelInfo& info) { return CreateCastAll(info, device); }});
}

}  // namespace caesura
